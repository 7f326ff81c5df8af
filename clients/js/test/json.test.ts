import { describe, expect, it } from "vitest";
import { parse } from "../src/json.js";
import { explain } from "../src/messages.js";

describe("JSON", () => {
  it("keeps integers that a double cannot hold", () => {
    const text = '{"key":[9007199254740993],"row":{"n":1,"x":0.1234567890123456789}}';
    const { key, row } = parse(text) as { key: unknown[]; row: Record<string, unknown> };
    // Node 20 has no source access in revivers; engines that have it keep every digit.
    const exact = "rawJSON" in JSON ? "9007199254740993" : 9007199254740992;
    expect(key).toEqual([exact]);
    expect(row).toEqual({ n: 1, x: 0.12345678901234568 });
  });
});

describe("the explanation of an error", () => {
  it("is the detail, or else the title", () => {
    expect(explain({ title: "Bad Request", detail: "no column m" })).toBe("no column m");
    expect(explain({ title: "Not Found", detail: "" })).toBe("Not Found");
    expect(explain({})).toBe("the server gave no reason");
  });
});
