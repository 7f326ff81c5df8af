import { describe, expect, it } from "vitest";
import { briefly, RebuildStrip, rebuildOf } from "../src/ui/rebuild";

const NOW = Date.parse("2026-11-16T16:00:00Z");
const MINUTE = 60_000;
const running = { state: "replaying", request: "r", done: 420, total: 1_000, started_at: NOW - MINUTE, left_s: 83 };

describe("a rebuild", () => {
  it("says how far it is, how long it takes on, and that the old rows are shown", () => {
    const told = rebuildOf(running, NOW);
    expect(told).toMatchObject({ text: "Rebuilding, 42 %", left: "about 1 min left", share: 0.42, tone: "warm" });
    expect(told?.detail).toContain("420 of 1,000 records");
    expect(told?.detail).toContain("the old rows are shown until it is ready");
    expect(told?.detail).not.toContain("pipeline");
    expect(briefly("by_city", running)).toBe("by_city rebuilding 42 %");
  });

  it("says from which events on, and that the pipeline changed when nobody asked for it", () => {
    const told = rebuildOf({ state: "waiting", since: NOW - 5 * MINUTE, started_at: NOW }, NOW);
    expect(told?.text).toBe("Rebuilding, waits for the views that it reads");
    expect(told?.detail).toMatch(/events from .* on .*because the pipeline changed/);
    expect(rebuildOf({ state: "ready", request: "r" }, NOW)?.text).toContain("waits for a yes");
    expect(rebuildOf({ state: "ready" }, NOW)?.text).toContain("about to take over");
  });

  it("is news for a while when it is done: a new epoch", () => {
    const done = { ...running, state: "done", ended_at: NOW - MINUTE };
    expect(rebuildOf(done, NOW)).toMatchObject({ tone: "good", share: 1 });
    expect(rebuildOf(done, NOW)?.detail).toContain("new epoch");
    expect(rebuildOf(done, NOW + 11 * MINUTE)).toBeNull();
    expect(briefly("by_city", done)).toBeNull();
    expect(rebuildOf(null, NOW)).toBeNull();
  });

  it("tells why it failed; for good, if the pipeline waits for it", () => {
    const failed = { state: "failed", error: "no room", ended_at: NOW };
    expect(rebuildOf(failed, NOW)).toMatchObject({ text: "The rebuild failed", tone: "bad" });
    expect(rebuildOf(failed, NOW + 60 * MINUTE)?.detail).toContain("no room");
    expect(rebuildOf({ ...failed, request: "r" }, NOW + 60 * MINUTE)).toBeNull();
  });

  it("is a strip with a bar that is gone when there is nothing to tell", () => {
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
