export interface Runner {
  readonly id: string;
  readonly label: string;
  readonly value: number;
}

export interface Lane extends Runner {
  readonly rank: number;
  /** Of the leader's length, 0 to 1. */
  readonly share: number;
}

/**
 * The lanes of a bar race: the `count` largest, each with its rank and its share of the leader.
 * Runners of equal value keep the order they had, so that bars pass each other only by merit.
 */
export function lanes(
  runners: Iterable<Runner>,
  ranks: ReadonlyMap<string, number>,
  count: number,
): Lane[] {
  const before = (a: Runner, b: Runner): number =>
    b.value - a.value ||
    (ranks.get(a.id) ?? count) - (ranks.get(b.id) ?? count) ||
    (a.label < b.label ? -1 : 1);
  const top = [...runners].sort(before).slice(0, count);
  const most = Math.max(0, top[0]?.value ?? 0);
  return top.map((runner, rank) => ({
    ...runner,
    rank,
    share: most === 0 ? 0 : Math.max(0, runner.value) / most,
  }));
}

/** A colour's number that stays with a label for good: by it the eye follows a bar. */
export function hueOf(label: string, hues: number): number {
  let hash = 2166136261;
  for (let index = 0; index < label.length; index++) {
    hash = Math.imul(hash ^ label.charCodeAt(index), 16777619) >>> 0;
  }
  return hash % hues;
}
