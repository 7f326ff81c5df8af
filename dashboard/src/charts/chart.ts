import type { Rows } from "@millstream/client";

/** A drawing of a view's rows. */
export interface Chart {
  readonly root: HTMLElement;
  /** True if it is shown without rows, as a map is. */
  readonly visibleWhenEmpty: boolean;
  /** The column that is drawn; null if only places are drawn. */
  measure: string | null;
  /** Draws the rows. It is called inside an animation frame, and only when rows changed. */
  paint(rows: Rows, now: number): void;
  /** One sentence for screen readers. */
  describe(): string;
}
