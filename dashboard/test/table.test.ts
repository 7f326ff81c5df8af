import { describe, expect, it } from "vitest";
import { Rows, type System, type ViewDescription } from "@millstream/client";
import { chooseChart } from "../src/charts/chart-choice";
import { watermarkOf } from "../src/ui/freshness";
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

describe("a row of a windowed view", () => {
  it("shows its state, and each change of state", () => {
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

  it("does not use an unknown state as a class", () => {
    const table = new LiveTable(view, () => undefined);
    const rows = new Rows();
    rows.replace([{ key: [window], row: { window, n: 1, _state: "final x" } }], "e:0=1");
    table.paint(rows);
    expect(badges(table)).toEqual([["state", "final x"]]);
  });
});

describe("a windowed view", () => {
  it("is drawn without its state as a label", () => {
    expect(chooseChart(view)).toEqual({ kind: "timeline", window: "window", measures: ["n"] });
  });

  it("shows its watermark on its card; one without windows has none", () => {
    const system = { views: [view, { ...view, name: "plain", columns: [] }] } as unknown as System;
    expect(watermarkOf(system, "per_minute")).toBe(Date.parse("2026-11-16T16:42:00Z"));
    expect(watermarkOf(system, "plain")).toBeNull();
    expect(watermarkOf(system, "gone")).toBeNull();
  });
});
