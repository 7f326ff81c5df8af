import { isIdentifier, kindOf, numberOf, timeOf, timeWindowOf, windowColumn } from "./columns.js";
import type { Row, Value } from "./messages.js";
import type { Entry, Rows } from "./rows.js";
import type { ViewDescription } from "./system.js";

export interface Sort {
  readonly column: string;
  readonly descending: boolean;
}

/** Newest window first, then the largest number. A view without a key has no order: its newest rows come first. */
export function defaultOrder(view: ViewDescription): readonly Sort[] {
  if (view.key === null) return [];
  const order: Sort[] = [];
  const window = windowColumn(view);
  if (window !== null) order.push({ column: window, descending: true });
  const measure = view.columns.find(
    (c) => kindOf(c) === "number" && !isIdentifier(c.name) && view.key?.includes(c.name) === false,
  );
  if (measure !== undefined) order.push({ column: measure.name, descending: true });
  for (const column of view.key) {
    if (column !== window) order.push({ column, descending: false });
  }
  return order;
}

function compareValues(a: Value | undefined, b: Value | undefined): number {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  if (typeof a === "number" && typeof b === "number") return a - b;
  const windowA = timeWindowOf(a);
  const windowB = timeWindowOf(b);
  if (windowA !== null && windowB !== null) return windowA.start - windowB.start || windowA.end - windowB.end;
  const timeA = typeof a === "string" && /^\d{4}-\d\d-\d\dT/.test(a) ? timeOf(a) : null;
  const timeB = timeA === null ? null : timeOf(b);
  if (timeA !== null && timeB !== null) return timeA - timeB;
  if (typeof a === "string" && typeof b === "string") {
    const numberA = numberOf(a);
    const numberB = numberA === null ? null : numberOf(b);
    if (numberA !== null && numberB !== null && numberA !== numberB) return numberA - numberB;
    return a < b ? -1 : 1;
  }
  return JSON.stringify(a) < JSON.stringify(b) ? -1 : 1;
}

function compareRows(a: Row, b: Row, order: readonly Sort[]): number {
  for (const { column, descending } of order) {
    const result = compareValues(a[column], b[column]);
    if (result !== 0) return descending ? -result : result;
  }
  return 0;
}

/** The entries in the order of a query that sorts its rows. */
export function ranked(rows: Rows): Entry[] {
  return [...rows.entries.values()].sort((a, b) => (a.rank ?? Infinity) - (b.rank ?? Infinity) || a.sequence - b.sequence);
}

/**
 * The first `count` entries of the order, without sorting the others.
 * A view may hold thousands of rows while a table shows ten of them, several times a second.
 */
export function firstRows(rows: Rows, order: readonly Sort[], count: number): Entry[] {
  const compare = (a: Entry, b: Entry): number =>
    compareRows(a.row, b.row, order) || b.sequence - a.sequence;
  const best: Entry[] = [];
  for (const entry of rows.entries.values()) {
    const last = best[best.length - 1];
    if (best.length >= count && last !== undefined && compare(entry, last) >= 0) continue;
    let low = 0;
    let high = best.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      const other = best[middle];
      if (other !== undefined && compare(other, entry) <= 0) low = middle + 1;
      else high = middle;
    }
    best.splice(low, 0, entry);
    if (best.length > count) best.pop();
  }
  return best;
}
