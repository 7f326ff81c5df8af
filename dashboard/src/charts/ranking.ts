export interface Item {
  readonly id: string;
  readonly label: string;
  readonly value: number;
}

export interface RankedItem extends Item {
  readonly rank: number;
  /** The fraction of the leader's value, 0 to 1. */
  readonly share: number;
}

/**
 * The `count` largest items, each with its rank and its fraction of the leader's value.
 * Items of equal value keep their previous order, so that a bar passes another only when its value is larger.
 */
export function rankItems(
  items: Iterable<Item>,
  ranks: ReadonlyMap<string, number>,
  count: number,
): RankedItem[] {
  const before = (a: Item, b: Item): number =>
    b.value - a.value ||
    (ranks.get(a.id) ?? count) - (ranks.get(b.id) ?? count) ||
    (a.label < b.label ? -1 : 1);
  const top = [...items].sort(before).slice(0, count);
  const most = Math.max(0, top[0]?.value ?? 0);
  return top.map((item, rank) => ({
    ...item,
    rank,
    share: most === 0 ? 0 : Math.max(0, item.value) / most,
  }));
}

/** The number of a label's colour. It never changes, so that the reader can follow a bar. */
export function hueOf(label: string, hues: number): number {
  let hash = 2166136261;
  for (let index = 0; index < label.length; index++) {
    hash = Math.imul(hash ^ label.charCodeAt(index), 16777619) >>> 0;
  }
  return hash % hues;
}
