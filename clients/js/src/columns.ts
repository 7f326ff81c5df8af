import type { Column, Value } from "./messages.js";
import type { ViewDescription } from "./system.js";

export type Kind = "number" | "text" | "window" | "timestamp" | "date" | "boolean" | "other";

const NUMBER = /^(tinyint|smallint|int|integer|bigint|long|hugeint|u\w*int\w*|float|real|double|decimal|numeric)\b/;

/** The kind of a column's values, from its type as Spark or DuckDB writes it. */
export function kindOf(column: Column): Kind {
  const type = column.type.toLowerCase();
  if (/^struct\W\s*"?start"?[\s:]+timestamp.*"?end"?[\s:]+timestamp/.test(type)) return "window";
  if (NUMBER.test(type)) return "number";
  if (/^(string|varchar|char|text|uuid|enum)/.test(type)) return "text";
  if (type.startsWith("timestamp")) return "timestamp";
  if (type === "date") return "date";
  if (type.startsWith("bool")) return "boolean";
  return "other";
}

/** True for the name of a number that identifies something: adding such numbers up has no meaning. */
export function isIdentifier(name: string): boolean {
  return /(^|_)(id|ids|key|year|zip|port|code)$/i.test(name) || /[a-z]Id$/.test(name);
}

/** The column that the server adds to windowed views: provisional, final or corrected. */
export const ROW_STATE = "_state";

/** The column that is a time window: the declared one, or the first whose type is a window. */
export function windowColumn(view: ViewDescription): string | null {
  if (view.window !== undefined && view.window !== null) return view.window;
  return view.columns.find((column) => kindOf(column) === "window")?.name ?? null;
}

/** A time window in milliseconds since 1970. */
export interface TimeWindow {
  readonly start: number;
  readonly end: number;
}

/** The time window in a cell, or null if the cell has none. */
export function timeWindowOf(value: Value | undefined): TimeWindow | null {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return null;
  const start = timeOf(value.start);
  const end = timeOf(value.end);
  return start === null || end === null ? null : { start, end };
}

/** The time in a cell in milliseconds since 1970, or null if the cell has none. */
export function timeOf(value: Value | undefined): number | null {
  if (typeof value !== "string") return null;
  const time = Date.parse(value);
  return Number.isNaN(time) ? null : time;
}

/** The finite number in a cell, or null if the cell has none. Decimals may be text. */
export function numberOf(value: Value | undefined): number | null {
  if (typeof value === "string" && value.trim() === "") return null;
  if (typeof value !== "number" && typeof value !== "string") return null;
  const number = Number(value);
  return Number.isFinite(number) ? number : null;
}
