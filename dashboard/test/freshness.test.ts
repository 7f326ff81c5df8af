import { describe, expect, it } from "vitest";
import type { System } from "@millstream/client";
import { EventTimes } from "../src/ui/event-times";
import { timesOf } from "../src/ui/event-times-status";
import { lagOf, Freshness } from "../src/ui/freshness";

const NOW = Date.parse("2026-11-16T16:00:00Z");

describe("the freshness of a view", () => {
  it("is up to date when nothing is behind, or too little to see", () => {
    expect(lagOf({ behind: 0 })?.text).toBe("up to date");
    expect(lagOf({ behind: 7, behind_s: 0.2, trend: "steady" })?.text).toBe("up to date");
    expect(lagOf({})).toBeNull();
    expect(lagOf(undefined)).toBeNull();
  });

  it("warns while the lag grows, and estimates when the view has caught up", () => {
    const growing = lagOf({ behind: 4_000, behind_s: 31.2, trend: "growing" });
    expect(growing).toMatchObject({ text: "4,000 events behind, 31.2 s ▲ growing", tone: "warm" });
    const shrinking = lagOf({ behind: 1, behind_s: 3.1, trend: "shrinking", catch_up_s: 12.4 });
    expect(shrinking).toMatchObject({ text: "1 event behind, 3.1 s ▼ shrinking, caught up in 12 s", tone: "" });
  });

  it("shows until when windows are final, and how long ago that is", () => {
    const freshness = new Freshness();
    freshness.paint(lagOf({ behind: 0 }), NOW - 4_200, NOW);
    expect(freshness.root.textContent).toMatch(/^up to datefinal until .*, 4\.2 s ago$/);
    freshness.paint(null, null, NOW);
    expect(freshness.root.hidden).toBe(true);
  });
});

const system = (analyze: System["tiers"]["analyze"]): System => ({
  app: "shop",
  version: "0.1.0",
  now: "2026-11-16T16:00:00Z",
  streams: [
    { name: "clicks", columns: [], watermark: "2026-11-16T15:59:57Z" },
    { name: "timeless", columns: [] },
  ],
  views: [],
  tiers: { collect: { state: "up" }, log: { state: "up" }, analyze, serve: { state: "up" } },
});

describe("the time of streams", () => {
  const counted = { clicks: { in_order: 12_004, late: 12, broken: 0, lost: 0 } };

  it("counts the events that windows missed, and warns only if there are some", () => {
    const { streams } = timesOf(system({ state: "up", streams: counted }), NOW);
    expect(streams).toHaveLength(1);
    expect(streams[0]?.watermark).toMatch(/3\.0 s ago$/);
    const counts = streams[0]?.counts.map(({ text, tone }) => [text, tone]);
    expect(counts).toEqual([["12,004 in time", ""], ["12 late", "warm"], ["0 from the future", ""], ["0 broken", ""]]);
    const lost = timesOf(system({ state: "up", streams: { clicks: { lost: 3 } } }), NOW).streams[0]?.counts.at(-1);
    expect(lost).toMatchObject({ text: "3 lost", tone: "bad" });
  });

  it("shows the delay of events, or how far ahead they are dated", () => {
    const skew = { p50: -300, p99: 14_000, max: 180_000, count: 9 };
    const up = system({ state: "up", streams: counted });
    const collect = { state: "up", streams: { clicks: { skew_ms: skew, out_of_order: 1_204 } } };
    const { streams } = timesOf({ ...up, tiers: { ...up.tiers, collect } }, NOW);
    expect(streams[0]?.skew).toBe("skew −300 ms · p99 14.0 s · max 3 min, 1,204 out of order");
    expect(timesOf(up, NOW).streams[0]?.skew).toBe("");
    const shown = new EventTimes();
    shown.paint({ ...up, tiers: { ...up.tiers, collect } });
    expect(shown.root.textContent).toContain("agoskew −300 ms");
  });

  it("names drifting fields as text, and is hidden when there is nothing to show", () => {
    const drift = { stream: "clicks", field: "<i>page</i>", at: NOW - 60_000, score: 0.4, before: "mostly a", now: "mostly b" };
    const shown = new EventTimes();
    shown.paint(system({ state: "up" }));
    expect(shown.root.hidden).toBe(true);
    shown.paint(system({ state: "up", streams: counted, drifts: [drift] }));
    expect(shown.root.hidden).toBe(false);
    expect(shown.root.textContent).toContain("clicks.<i>page</i>mostly bbefore: mostly a");
    shown.paint(system({ state: "down", streams: counted }));
    expect(shown.root.classList.contains("stale")).toBe(true);
    expect(shown.root.querySelector<HTMLElement>("[role=status]")?.hidden).toBe(true);
  });
});
