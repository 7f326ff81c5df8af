import { describe, expect, it } from "vitest";
import type { System } from "@millstream/client";
import { BOXES, statusesOf, unreachable, warningsOf, type TierStatus } from "../src/ui/tier-status";

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

const box = (statuses: readonly TierStatus[], id: string): TierStatus | undefined => statuses[BOXES.findIndex((each) => each.id === id)];

describe("the diagram of the tiers", () => {
  it("has one status for each box, with the tier's own state", () => {
    const statuses = statusesOf(system);
    expect(statuses).toHaveLength(BOXES.length);
    expect(box(statuses, "collect")).toMatchObject({ state: "up", rate: 12 });
    expect(box(statuses, "analyze")?.state).toBe("down");
  });

  it("warns of rejected events, a retrying source and a failed query", () => {
    const statuses = statusesOf(system);
    const notes = (id: string): unknown => box(statuses, id)?.notes;
    expect(notes("collect")).toContainEqual({ text: "2 rejected", tone: "warm" });
    expect(notes("senders")).toEqual([{ text: "websocket retrying", title: "orders from ws://x/: refused", tone: "warm" }]);
    expect(notes("analyze")).toContainEqual({ text: "by_city failed", title: "out of memory", tone: "bad" });
  });

  it("shows no flow to clients when there are none", () => {
    expect(box(statusesOf(system), "clients")?.rate).toBe(0);
  });

  it("shows serve as down and the others as unknown when serve does not answer", () => {
    const statuses = unreachable();
    expect(box(statuses, "serve")?.state).toBe("down");
    expect(box(statuses, "analyze")?.state).toBe("unknown");
  });

  it("explains what a tier that is down means for the figures", () => {
    expect(warningsOf(system)).toMatch(/^Analyze is down: views do not change/);
    const up = { ...system, tiers: { ...system.tiers, analyze: { state: "up" } } };
    expect(warningsOf(up)).toBe("");
    expect(warningsOf(null)).toMatch(/server does not answer/);
  });

  it("names a failing process, its reason and the end of its log", () => {
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
    for (const id of ["stream-log", "view-log"]) expect(box(statusesOf(dying), id)?.notes).toContainEqual(note);
    expect(box(statusesOf(dying), "collect")?.notes).not.toContainEqual(note);
    expect(warningsOf(dying)).toMatch(/^kafka died 7 times, last by exit code 1 \(the disk of \/home is full\).*no space left on device/);
    const once = { ...system, failing: [{ ...failure, deaths: 1, lines: [] }] };
    expect(warningsOf(once)).toMatch(/^kafka died, last by exit code 1.*, and is restarted\. /);
  });

  it("shows since when a hanging collector has been silent, and no rate", () => {
    const collect = { ...system.tiers.collect, state: "down", rate: null, reported_at: "2026-11-16T15:59:30Z" };
    const status = box(statusesOf({ ...system, tiers: { ...system.tiers, collect } }), "collect");
    expect(status?.figure).toBe("–");
    expect(status?.notes?.[0]).toMatchObject({ tone: "bad" });
    expect(status?.notes?.[0]?.text).toMatch(/^silent since /);
    expect(box(statusesOf(system), "collect")?.figure).toBeUndefined();
  });
});
