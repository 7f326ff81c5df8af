import { describe, expect, it } from "vitest";
import type { System, ViewDescription } from "../src/net/protocol";
import { Rows } from "../src/state/rows";
import { shapeOf } from "../src/state/shape";
import { watermarkOf } from "../src/ui/standing";
import { LiveTable } from "../src/ui/table";

const view: ViewDescription = {
  name: "per_minute",
  inputs: [],
  key: ["window"],
  columns: [
    { name: "window", type: "struct<start:timestamp,end:timestamp>" },
    { name: "n", type: "bigint" },
    { name: "_state", type: "string" },
  ],
  window: "window",
  mode: "real_time",
  reason: "",
  watermark: "2026-11-16T16:42:00.000Z",
};
const window = { start: "2026-11-16T16:41:00.000000Z", end: "2026-11-16T16:42:00.000000Z" };

function badges(table: LiveTable): (string | null)[][] {
  return [...table.root.querySelectorAll(".state")].map((badge) => [badge.className, badge.textContent]);
}

describe("a row of a window", () => {
  it("shows what it is, and the change from one state to the next", () => {
    const table = new LiveTable(view, () => undefined);
    const rows = new Rows();
    const show = (n: number, state: string): (string | null)[][] => {
      rows.replace([{ key: [window], row: { window, n, _state: state } }], `e:0=${n}`);
      table.paint(rows);
      return badges(table);
    };
    expect(show(1, "provisional")).toEqual([["state provisional", "provisional"]]);
    expect(show(1, "final")).toEqual([["state final", "final"]]);
    expect(show(2, "corrected")).toEqual([["state corrected", "corrected"]]);
    expect(table.root.querySelector("thead")?.textContent).toBe("windownstate");
  });

  it("does not take an unknown state for a class", () => {
    const table = new LiveTable(view, () => undefined);
    const rows = new Rows();
    rows.replace([{ key: [window], row: { window, n: 1, _state: "final x" } }], "e:0=1");
    table.paint(rows);
    expect(badges(table)).toEqual([["state", "final x"]]);
  });
});

describe("a view of windows", () => {
  it("is drawn as before: its state is no label", () => {
    expect(shapeOf(view)).toEqual({ kind: "timeline", window: "window", measures: ["n"] });
  });

  it("tells its watermark on its card; one without windows has none", () => {
    const system = { views: [view, { ...view, name: "plain", columns: [] }] } as unknown as System;
    expect(watermarkOf(system, "per_minute")).toBe(Date.parse("2026-11-16T16:42:00Z"));
    expect(watermarkOf(system, "plain")).toBeNull();
    expect(watermarkOf(system, "gone")).toBeNull();
  });
});
