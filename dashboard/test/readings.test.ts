import { describe, expect, it } from "vitest";
import type { System } from "../src/net/protocol";
import { BOXES, read, troublesOf, unreachable, type Reading } from "../src/ui/readings";

const system: System = {
  app: "shop",
  version: "0.1.0",
  now: "2026-11-16T16:00:00Z",
  streams: [{ name: "orders", columns: [] }],
  views: [{ name: "by_city", inputs: [], key: ["city"], columns: [], mode: "real_time", reason: "" }],
  tiers: {
    collect: {
      state: "up",
      rate: 12,
      rejected: 2,
      pending: 0,
      sources: [{ stream: "orders", kind: "websocket", url: "ws://x/", state: "retrying", error: "refused" }],
    },
    log: { state: "up", rate: 12 },
    analyze: { state: "down", rate: 0, views: { by_city: { state: "failed", error: "out of memory" } } },
    serve: { state: "up", rate: 30, clients: 0 },
  },
};

const box = (readings: readonly Reading[], id: string): Reading | undefined => readings[BOXES.findIndex((each) => each.id === id)];

describe("the picture of the tiers", () => {
  it("has one reading for each box, with the tier's own state", () => {
    const readings = read(system);
    expect(readings).toHaveLength(BOXES.length);
    expect(box(readings, "collect")).toMatchObject({ state: "up", rate: 12 });
    expect(box(readings, "analyze")?.state).toBe("down");
  });

  it("warns of rejected events, of a source that retries and of a query that failed", () => {
    const readings = read(system);
    const notes = (id: string): unknown => box(readings, id)?.notes;
    expect(notes("collect")).toContainEqual({ text: "2 rejected", tone: "warm" });
    expect(notes("senders")).toEqual([{ text: "websocket retrying", title: "orders from ws://x/: refused", tone: "warm" }]);
    expect(notes("analyze")).toContainEqual({ text: "by_city failed", title: "out of memory", tone: "bad" });
  });

  it("shows no flow to clients when there are none", () => {
    expect(box(read(system), "clients")?.rate).toBe(0);
  });

  it("says that serve is down, and nothing of the others, when serve does not answer", () => {
    const readings = unreachable();
    expect(box(readings, "serve")?.state).toBe("down");
    expect(box(readings, "analyze")?.state).toBe("unknown");
  });

  it("tells what a tier that is down means for the numbers", () => {
    expect(troublesOf(system)).toMatch(/^Analyze is down: the views stand still/);
    const up = { ...system, tiers: { ...system.tiers, analyze: { state: "up" } } };
    expect(troublesOf(up)).toBe("");
    expect(troublesOf(null)).toMatch(/server does not answer/);
  });

  it("names a process that keeps dying, why, and how its log ends", () => {
    const failure = {
      process: "kafka",
      state: "restarting",
      deaths: 7,
      reason: "exit code 1 (the disk of /home is full)",
      died_at: "2026-11-16T15:59:30Z",
      log: "/home/logs/kafka-start.log",
      lines: ["starting", "error: no space left on device"],
    };
    const dying = { ...system, failing: [failure] };
    const note = { text: "died 7 times", tone: "bad", title: `${failure.reason}\n${failure.log}\nstarting\nerror: no space left on device` };
    for (const id of ["stream-log", "view-log"]) expect(box(read(dying), id)?.notes).toContainEqual(note);
    expect(box(read(dying), "collect")?.notes).not.toContainEqual(note);
    expect(troublesOf(dying)).toMatch(/^kafka died 7 times, last by exit code 1 \(the disk of \/home is full\).*no space left on device/);
    const once = { ...system, failing: [{ ...failure, deaths: 1, lines: [] }] };
    expect(troublesOf(once)).toMatch(/^kafka died, last by exit code 1.*again and again\. /);
  });

  it("says since when a collector that hangs has been silent, and shows no rate", () => {
    const collect = { ...system.tiers.collect, state: "down", rate: null, reported_at: "2026-11-16T15:59:30Z" };
    const reading = box(read({ ...system, tiers: { ...system.tiers, collect } }), "collect");
    expect(reading?.figure).toBe("–");
    expect(reading?.notes?.[0]).toMatchObject({ tone: "bad" });
    expect(reading?.notes?.[0]?.text).toMatch(/^silent since /);
    expect(box(read(system), "collect")?.figure).toBeUndefined();
  });
});
