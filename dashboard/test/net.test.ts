import { describe, expect, it } from "vitest";
import { backoff } from "../src/net/backoff";
import { parse } from "../src/net/json";
import { explain } from "../src/net/protocol";
import { dropsFor, lanesFor } from "../src/ui/flow";

describe("reconnecting", () => {
  it("waits longer each time, up to a bound, and never without chance", () => {
    const longest = [0, 1, 2, 5, 50].map((failures) => backoff(failures, () => 1));
    expect(longest).toEqual([500, 1_000, 2_000, 15_000, 15_000]);
    expect(backoff(3, () => 0)).toBe(backoff(3, () => 1) / 2);
  });
});

describe("JSON", () => {
  it("keeps integers that a double cannot hold", () => {
    const text = '{"key":[9007199254740993],"row":{"n":1,"x":0.1234567890123456789}}';
    const { key, row } = parse(text) as { key: unknown[]; row: Record<string, unknown> };
    // Node 20 has no source access in revivers; browsers that have it keep every digit.
    const exact = "rawJSON" in JSON ? "9007199254740993" : 9007199254740992;
    expect(key).toEqual([exact]);
    expect(row).toEqual({ n: 1, x: 0.12345678901234568 });
  });
});

describe("an error's words", () => {
  it("are the detail, or else the title", () => {
    expect(explain({ title: "Bad Request", detail: "no column m" })).toBe("no column m");
    expect(explain({ title: "Not Found", detail: "" })).toBe("Not Found");
    expect(explain({})).toBe("the server gave no reason");
  });
});

describe("the flow between tiers", () => {
  it("shows each event while they can be counted, and grows with the rate without end to the eye", () => {
    expect(dropsFor(0)).toBe(0);
    expect(dropsFor(3)).toBe(3);
    const drops = [6, 60, 600, 6_000].map(dropsFor);
    expect(drops).toEqual([...drops].sort((a, b) => a - b));
    expect(dropsFor(6_000)).toBeLessThan(60);
    expect([0, 1, 1_000, 1e9].map(lanesFor)).toEqual([1, 1, 5, 7]);
  });
});
