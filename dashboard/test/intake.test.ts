import { describe, expect, it } from "vitest";
import type { CollectTier, System } from "@millstream/client";
import { intakeOf } from "../src/ui/intake-status";
import { warningsOf } from "../src/ui/tier-status";

const MS = { p50: 1, p99: 12, max: 30, count: 9, min: 0.4, mean: 2.5 };

function system(collect: Partial<CollectTier>): System {
  const up = { state: "up" };
  return {
    app: "shop",
    version: "0.1.0",
    now: "2026-11-16T16:00:00Z",
    streams: [{ name: "orders", columns: [] }],
    views: [],
    tiers: { collect: { ...up, ...collect }, log: up, analyze: up, serve: up },
  };
}

const source = (stream: string, state: string, more = {}): NonNullable<CollectTier["sources"]>[number] => ({
  stream,
  kind: "kafka",
  url: "kafka://there/topic",
  state,
  ...more,
});

describe("the collecting panel", () => {
  it("shows HTTP if no source is read", () => {
    expect(intakeOf(system({})).sources).toMatchObject([{ stream: "1 stream", kind: "HTTP", tone: "good" }]);
  });

  it("shows sources with problems first, and how far the others are behind", () => {
    const sources = [
      source("a", "connected", { rate: 12.34, behind: 1200, behind_unit: "messages" }),
      source("b", "listening", { rate: 0, lost: 3 }),
      source("c", "retrying", { error: "refused" }),
      source("d", "stopped"),
    ];
    const status = intakeOf(system({ sources }));
    expect(status.sources.map(({ stream, tone, text }) => [stream, tone, text])).toEqual([
      ["b", "warm", "0/s · 3 lost"],
      ["c", "warm", "retrying"],
      ["d", "bad", "stopped"],
    ]);
    expect(status.more).toBe(1);
    expect(status.sources[1]?.title).toBe("retrying: kafka://there/topic – refused");
    expect(intakeOf(system({ sources: sources.slice(0, 1) })).sources[0]?.text).toBe("12.3/s · 1,200 messages behind");
  });

  it("shows a source that lost an unknown number of events", () => {
    const sources = [source("a", "connected", { rate: 1, warning: "the broker has forgotten" })];
    expect(intakeOf(system({ sources })).sources).toMatchObject([
      { tone: "warm", text: "1.0/s", title: "connected: kafka://there/topic – the broker has forgotten" },
    ]);
  });

  it("shows the mean and the p99 of each step, and all four measures in its title", () => {
    const { steps } = intakeOf(system({ journaled_ms: MS, latency_ms: { ...MS, mean: 1500 } }));
    expect(steps.map(({ name, mean, p99 }) => [name, mean, p99])).toEqual([
      ["on disk", "2.5 ms", "p99 12 ms"],
      ["sent", "–", ""],
      ["acknowledged", "1.5 s", "p99 12 ms"],
    ]);
    expect(steps[0]?.title).toContain("min 0.4 ms, mean 2.5 ms, p99 12 ms, max 30 ms");
  });

  it("shows how full the journal is, and why it accepts nothing", () => {
    const journal = { entries: 1, stored_bytes: 850_000_000, max_bytes: 1_000_000_000 };
    expect(intakeOf(system({ journal })).journal).toEqual({ text: "1 waits", detail: "850 MB of 1.0 GB", share: 0.85, tone: "warm" });
    expect(intakeOf(system({ journal: { ...journal, stored_bytes: 2e9 } })).journal).toMatchObject({ text: "full", share: 1, tone: "bad" });
    const broken = system({ journal: { broken: "disk full" } });
    expect(intakeOf(broken).journal).toMatchObject({ text: "accepts nothing", detail: "disk full", tone: "bad" });
    expect(warningsOf(broken)).toMatch(/journal accepts nothing \(disk full\)/);
    expect(intakeOf(system({})).journal).toBeNull();
  });

  it("shows the sum of events, with rare terms only if they are not zero", () => {
    const status = intakeOf(system({ accepted: 9, logged: 5, rejected: 1, failed: 1, duplicates: 1, pending: 0, unaccounted: 1 }));
    expect(status.terms.map(({ name, count }) => `${count} ${name}`)).toEqual(["5 logged", "1 rejected", "1 failed", "1 duplicate", "0 pending"]);
    expect(status.unaccounted).toBe(1);
    expect(warningsOf(system({ unaccounted: 1 }))).toMatch(/1 accepted events are unaccounted for/);
    expect(warningsOf(system({ unaccounted: 0 }))).toBe("");
  });
});
