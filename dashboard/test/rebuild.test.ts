import { describe, expect, it } from "vitest";
import { rebuildNote, RebuildStrip, rebuildOf } from "../src/ui/rebuild";

const NOW = Date.parse("2026-11-16T16:00:00Z");
const MINUTE = 60_000;
const running = { state: "replaying", request: "r", done: 420, total: 1_000, started_at: NOW - MINUTE, left_s: 83 };

describe("a rebuild", () => {
  it("shows its progress, the time left, and that the old rows are shown", () => {
    const status = rebuildOf(running, NOW);
    expect(status).toMatchObject({ text: "Rebuilding, 42 %", left: "about 1 min left", share: 0.42, tone: "warm" });
    expect(status?.detail).toContain("420 of 1,000 records");
    expect(status?.detail).toContain("the old rows are shown until it is ready");
    expect(status?.detail).not.toContain("pipeline");
    expect(rebuildNote("by_city", running)).toBe("by_city rebuilding 42 %");
  });

  it("shows since when it computes, and that the pipeline changed if nobody requested it", () => {
    const status = rebuildOf({ state: "waiting", since: NOW - 5 * MINUTE, started_at: NOW }, NOW);
    expect(status?.text).toBe("Rebuilding, waits for its input views");
    expect(status?.detail).toMatch(/events since .*because the pipeline changed/);
    expect(rebuildOf({ state: "ready", request: "r" }, NOW)?.text).toContain("waits for confirmation");
    expect(rebuildOf({ state: "ready" }, NOW)?.text).toContain("about to take over");
  });

  it("is shown for some minutes when it is done, as a new epoch", () => {
    const done = { ...running, state: "done", ended_at: NOW - MINUTE };
    expect(rebuildOf(done, NOW)).toMatchObject({ tone: "good", share: 1 });
    expect(rebuildOf(done, NOW)?.detail).toContain("new epoch");
    expect(rebuildOf(done, NOW + 11 * MINUTE)).toBeNull();
    expect(rebuildNote("by_city", done)).toBeNull();
    expect(rebuildOf(null, NOW)).toBeNull();
  });

  it("shows why it failed, until it is repaired if the pipeline changed", () => {
    const failed = { state: "failed", error: "no room", ended_at: NOW };
    expect(rebuildOf(failed, NOW)).toMatchObject({ text: "The rebuild failed", tone: "bad" });
    expect(rebuildOf(failed, NOW + 60 * MINUTE)?.detail).toContain("no room");
    expect(rebuildOf({ ...failed, request: "r" }, NOW + 60 * MINUTE)).toBeNull();
  });

  it("is a strip with a bar, hidden when there is nothing to show", () => {
    const strip = new RebuildStrip();
    strip.paint(rebuildOf(running, NOW));
    expect(strip.root.hidden).toBe(false);
    expect(strip.root.querySelector(".meter")?.getAttribute("aria-valuenow")).toBe("42");
    strip.paint(rebuildOf({ ...running, state: "failed", error: "<b>no room</b>" }, NOW));
    expect(strip.root.querySelector("b")).toBeNull();
    expect(strip.root.textContent).toContain("<b>no room</b>");
    strip.paint(null);
    expect(strip.root.hidden).toBe(true);
  });
});
