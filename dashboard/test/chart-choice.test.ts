import { describe, expect, it } from "vitest";
import type { ViewDescription } from "@millstream/client";
import { chooseChart } from "../src/charts/chart-choice";
import { currentWindow } from "../src/charts/current-window";

function view(key: string[] | null, columns: Record<string, string>, window: string | null = null): ViewDescription {
  const list = Object.entries(columns).map(([name, type]) => ({ name, type }));
  return { name: "v", inputs: [], key, columns: list, window, mode: "real_time", reason: "" };
}

const WINDOW = "struct<start:timestamp,end:timestamp>";

describe("the chart of a view", () => {
  it("is a map if rows have coordinates", () => {
    const places = view(null, { id: "bigint", member: "string", city: "string", guests: "int", lat: "double", lon: "double" });
    expect(chooseChart(places)).toEqual({ kind: "map", lat: "lat", lon: "lon", label: ["city"], measures: [] });
    const weighed = view(["city"], { city: "string", n: "bigint", venue_lat: "double", venue_lon: "double" });
    expect(chooseChart(weighed)).toMatchObject({ kind: "map", lat: "venue_lat", measures: ["n"] });
  });

  it("is a race if windows have another key column, and a timeline if not", () => {
    const topics = view(["window", "topic"], { window: WINDOW, topic: "string", rsvps: "bigint", yes: "bigint" }, "window");
    expect(chooseChart(topics)).toEqual({ kind: "race", window: "window", label: ["topic"], measures: ["rsvps", "yes"] });
    const minutes = view(["window"], { window: WINDOW, n: "bigint" });
    expect(chooseChart(minutes)).toEqual({ kind: "timeline", window: "window", measures: ["n"] });
  });

  it("is bars if a key has a number, and nothing if there is no number to draw", () => {
    expect(chooseChart(view(["city"], { city: "string", n: "bigint" }))).toEqual({ kind: "bars", label: ["city"], measures: ["n"] });
    expect(chooseChart(view(["id"], { id: "bigint", name: "string" }))).toEqual({ kind: "none" });
    expect(chooseChart(view(null, { order_id: "bigint", text: "string" }))).toEqual({ kind: "none" });
    expect(chooseChart(view(null, {}))).toEqual({ kind: "none" });
  });

  it("does not use text columns as coordinates", () => {
    expect(chooseChart(view(["k"], { k: "string", lat: "string", lon: "string", n: "int" })).kind).toBe("bars");
  });
});

describe("the current window", () => {
  const minute = 60_000;
  const hour = (start: number): { start: number; end: number } => ({ start: start * minute, end: (start + 60) * minute });

  it("is the oldest open one of sliding windows", () => {
    const windows = [-60, -10, 0, 10, 20, 30, 40, 50].map(hour);
    expect(currentWindow(windows, 55 * minute)).toEqual(hour(0));
  });

  it("is the newest of tumbling windows", () => {
    expect(currentWindow([hour(0), hour(60), hour(120)], 130 * minute)).toEqual(hour(120));
  });

  it("is not one from a sender with a wrong clock", () => {
    expect(currentWindow([hour(0), hour(60), hour(9_000)], 70 * minute)).toEqual(hour(60));
  });

  it("exists if all windows are in the future", () => {
    expect(currentWindow([hour(9_000)], 0)).toEqual(hour(9_000));
    expect(currentWindow([], 0)).toBeNull();
  });
});
