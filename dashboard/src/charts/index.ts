import type { ChartChoice } from "./chart-choice";
import type { Chart } from "./chart";
import { BarRace } from "./bar-race";
import { Timeline } from "./timeline";

export type { Chart } from "./chart";

const RACE_BARS = 12;
const PLAIN_BARS = 8;

/** The chart for a choice. The map and its coordinates are loaded only by a page that needs them. */
export async function chartFor(choice: ChartChoice, serverNow: () => number): Promise<Chart | null> {
  switch (choice.kind) {
    case "map": {
      const { WorldMap } = await import("./map");
      return new WorldMap(choice, choice.measures[0] ?? null);
    }
    case "race":
      return new BarRace(choice, first(choice.measures), RACE_BARS, serverNow);
    case "bars":
      return new BarRace({ ...choice, window: null }, first(choice.measures), PLAIN_BARS, serverNow);
    case "timeline":
      return new Timeline(choice.window, first(choice.measures), serverNow);
    case "none":
      return null;
  }
}

function first(measures: readonly string[]): string {
  return measures[0] ?? "";
}
