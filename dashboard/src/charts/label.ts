import type { Row } from "@millstream/client";

/** The label of a row: the values of these columns as text. */
export function labelOf(row: Row, columns: readonly string[]): string {
  return columns
    .map((name) => {
      const value = row[name];
      if (value === null || value === undefined) return "–";
      return typeof value === "object" ? JSON.stringify(value) : String(value);
    })
    .join(" · ");
}
