import type { Shape } from "../state/shape";
import type { Picture } from "./picture";
import { Race } from "./race";
import { Timeline } from "./timeline";

export type { Picture } from "./picture";

const RACE_LANES = 12;
const BAR_LANES = 8;

/** The drawing for a shape; the map and its coordinates are fetched only by a page that needs them. */
export async function pictureFor(shape: Shape, serverNow: () => number): Promise<Picture | null> {
  switch (shape.kind) {
    case "map": {
      const { WorldMap } = await import("./map");
      return new WorldMap(shape, shape.measures[0] ?? null);
    }
    case "race":
      return new Race(shape, first(shape.measures), RACE_LANES, serverNow);
    case "bars":
      return new Race({ ...shape, window: null }, first(shape.measures), BAR_LANES, serverNow);
    case "timeline":
      return new Timeline(shape.window, first(shape.measures), serverNow);
    case "none":
      return null;
  }
}

function first(measures: readonly string[]): string {
  return measures[0] ?? "";
}
