import { describe, expect, it } from "vitest";
import { dropsPerSecond, tracksFor } from "../src/ui/flow";

describe("the flow between tiers", () => {
  it("shows each event of a low rate, and grows with a high rate up to a limit", () => {
    expect(dropsPerSecond(0)).toBe(0);
    expect(dropsPerSecond(3)).toBe(3);
    const drops = [6, 60, 600, 6_000].map(dropsPerSecond);
    expect(drops).toEqual([...drops].sort((a, b) => a - b));
    expect(dropsPerSecond(6_000)).toBeLessThan(60);
    expect([0, 1, 1_000, 1e9].map(tracksFor)).toEqual([1, 1, 5, 7]);
  });
});
