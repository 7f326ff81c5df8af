import { describe, expect, it } from "vitest";
import { backoff } from "../src/backoff.js";

describe("reconnecting", () => {
  it("waits longer each time, up to a limit, and for a random part of it", () => {
    const longest = [0, 1, 2, 5, 50].map((failures) => backoff(failures, () => 1));
    expect(longest).toEqual([500, 1_000, 2_000, 15_000, 15_000]);
    expect(backoff(3, () => 0)).toBe(backoff(3, () => 1) / 2);
  });
});
