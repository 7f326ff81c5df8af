import type { Rows } from "../state/rows";

/** A drawing of a view's rows. `paint` is called inside an animation frame, and only when rows moved. */
export interface Picture {
  readonly root: HTMLElement;
  /** True if it is worth its place without a single row, as a map is. */
  readonly standsEmpty: boolean;
  /** The column that is drawn; null where only places count. */
  measure: string | null;
  paint(rows: Rows, now: number): void;
  /** One sentence for those who don't see the drawing. */
  describe(): string;
}
