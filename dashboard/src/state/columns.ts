import type { Column, Row, Value } from "../net/protocol";

export type Kind = "number" | "text" | "window" | "timestamp" | "date" | "boolean" | "other";

const NUMBER = /^(tinyint|smallint|int|integer|bigint|long|hugeint|u\w*int\w*|float|real|double|decimal|numeric)\b/;

/** What a column holds, from its type in Spark's or DuckDB's words. */
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

/** An identifier is a number that nobody adds up, groups by thousands, or draws. */
export function isIdentifier(name: string): boolean {
  return /(^|_)(id|ids|key|year|zip|port|code)$/i.test(name) || /[a-z]Id$/.test(name);
}

/** What a row of a window is: the server adds it to the columns of the view. */
export const STATE = "_state";

export interface Span {
  readonly start: number;
  readonly end: number;
}

/** A window's start and end in milliseconds, or null if the value is none. */
export function spanOf(value: Value | undefined): Span | null {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return null;
  const start = instantOf(value.start);
  const end = instantOf(value.end);
  return start === null || end === null ? null : { start, end };
}

export function instantOf(value: Value | undefined): number | null {
  if (typeof value !== "string") return null;
  const at = Date.parse(value);
  return Number.isNaN(at) ? null : at;
}

/** A finite number out of a cell; decimals may come as text. */
export function numberOf(value: Value | undefined): number | null {
  if (typeof value === "string" && value.trim() === "") return null;
  if (typeof value !== "number" && typeof value !== "string") return null;
  const number = Number(value);
  return Number.isFinite(number) ? number : null;
}

export function labelOf(row: Row, columns: readonly string[]): string {
  return columns
    .map((name) => {
      const value = row[name];
      if (value === null || value === undefined) return "–";
      return typeof value === "object" ? JSON.stringify(value) : String(value);
    })
    .join(" · ");
}
