import { describe, expect, it } from "vitest";
import type { ViewDescription } from "../src/net/protocol";
import { kindOf } from "../src/state/columns";
import { shapeOf } from "../src/state/shape";
import { currentWindow } from "../src/state/windows";

function view(key: string[] | null, columns: Record<string, string>, window: string | null = null): ViewDescription {
  const list = Object.entries(columns).map(([name, type]) => ({ name, type }));
  return { name: "v", inputs: [], key, columns: list, window, mode: "real_time", reason: "" };
}

const WINDOW = "struct<start:timestamp,end:timestamp>";

describe("a view's drawing", () => {
  it("is a map where rows have places", () => {
    const places = view(null, { id: "bigint", member: "string", city: "string", guests: "int", lat: "double", lon: "double" });
    expect(shapeOf(places)).toEqual({ kind: "map", lat: "lat", lon: "lon", label: ["city"], measures: [] });
    const weighed = view(["city"], { city: "string", n: "bigint", venue_lat: "double", venue_lon: "double" });
    expect(shapeOf(weighed)).toMatchObject({ kind: "map", lat: "venue_lat", measures: ["n"] });
  });

  it("is a race where windows have a dimension, and a timeline where they have none", () => {
    const topics = view(["window", "topic"], { window: WINDOW, topic: "string", rsvps: "bigint", yes: "bigint" }, "window");
    expect(shapeOf(topics)).toEqual({ kind: "race", window: "window", label: ["topic"], measures: ["rsvps", "yes"] });
    const minutes = view(["window"], { window: WINDOW, n: "bigint" });
    expect(shapeOf(minutes)).toEqual({ kind: "timeline", window: "window", measures: ["n"] });
  });

  it("is bars where a key has a number, and nothing where there is no number to draw", () => {
    expect(shapeOf(view(["city"], { city: "string", n: "bigint" }))).toEqual({ kind: "bars", label: ["city"], measures: ["n"] });
    expect(shapeOf(view(["id"], { id: "bigint", name: "string" }))).toEqual({ kind: "none" });
    expect(shapeOf(view(null, { order_id: "bigint", text: "string" }))).toEqual({ kind: "none" });
    expect(shapeOf(view(null, {}))).toEqual({ kind: "none" });
  });

  it("does not take text coordinates for places", () => {
    expect(shapeOf(view(["k"], { k: "string", lat: "string", lon: "string", n: "int" })).kind).toBe("bars");
  });
});

describe("a column's kind", () => {
  it("is told by Spark's and by DuckDB's names", () => {
    const kinds = ["bigint", "DECIMAL(10,2)", "VARCHAR", "string", WINDOW, 'STRUCT("start" TIMESTAMP, "end" TIMESTAMP)', "TIMESTAMP WITH TIME ZONE", "array<int>", "boolean", "UINTEGER"];
    expect(kinds.map((type) => kindOf({ name: "c", type }))).toEqual([
      "number", "number", "text", "text", "window", "window", "timestamp", "other", "boolean", "number",
    ]);
  });
});

describe("the current window", () => {
  const minute = 60_000;
  const hour = (start: number): { start: number; end: number } => ({ start: start * minute, end: (start + 60) * minute });

  it("of sliding windows is the open one that has collected longest", () => {
    const windows = [-60, -10, 0, 10, 20, 30, 40, 50].map(hour);
    expect(currentWindow(windows, 55 * minute)).toEqual(hour(0));
  });

  it("of tumbling windows is the newest", () => {
    expect(currentWindow([hour(0), hour(60), hour(120)], 130 * minute)).toEqual(hour(120));
  });

  it("is not one that a sender's wrong clock made", () => {
    expect(currentWindow([hour(0), hour(60), hour(9_000)], 70 * minute)).toEqual(hour(60));
  });

  it("of a view that is all in the future is still one", () => {
    expect(currentWindow([hour(9_000)], 0)).toEqual(hour(9_000));
    expect(currentWindow([], 0)).toBeNull();
  });
});
