import { afterAll, beforeAll, describe, expect, it } from "vitest";
import * as format from "../src/ui/format";

const zone = process.env.TZ;
beforeAll(() => {
  process.env.TZ = "Europe/Berlin";
});
afterAll(() => {
  process.env.TZ = zone;
});

const now = Date.parse("2026-11-16T16:00:00Z");
const at = (time: string, day = "2026-11-16"): number => Date.parse(`${day}T${time}Z`);
const column = (type: string, name = "c"): { name: string; type: string } => ({ name, type });

describe("numbers", () => {
  it("are grouped, and have two places only where they have a fraction", () => {
    expect([0, 12, 1234567, 12.3456, 0.01234, -1234.5].map(format.number)).toEqual([
      "0",
      "12",
      "1,234,567",
      "12.35",
      "0.0123",
      "-1,234.50",
    ]);
  });

  it("that identify something are not grouped", () => {
    expect(format.cell(1800000123, column("bigint", "rsvp_id"))).toBe("1800000123");
    expect(format.cell(1800000123, column("bigint", "rsvps"))).toBe("1,800,000,123");
  });

  it("too long for a double stay as they came", () => {
    expect(format.cell("9007199254740993", column("bigint"))).toBe("9007199254740993");
  });
});

describe("rates and durations", () => {
  it("are as long as they are useful", () => {
    expect([0, 0.01, 0.44, 12.34, 1204.6].map(format.rate)).toEqual(["0", "<0.1", "0.4", "12.3", "1,205"]);
    expect([0.42, 83.4, 2100, 180_000, 5_400_000].map(format.duration)).toEqual([
      "0.4 ms",
      "83 ms",
      "2.1 s",
      "3 min",
      "1.5 h",
    ]);
  });
});

describe("windows and moments", () => {
  it("are shown in the reader's zone, the date only on another day", () => {
    const today = { start: at("13:00:00"), end: at("14:00:00") };
    expect(format.timeWindow(today, now)).toBe("14:00–15:00");
    const before = { start: at("13:00:00", "2026-11-14"), end: at("14:00:00", "2026-11-14") };
    expect(format.timeWindow(before, now)).toBe("14 Nov 14:00–15:00");
    expect(format.time(at("13:00:07"), now)).toBe("14:00:07");
    expect(format.time(at("13:00:07", "2024-02-01"), now)).toBe("1 Feb 2024 14:00:07");
  });

  it("show seconds when the window has some", () => {
    expect(format.timeWindow({ start: at("13:00:10"), end: at("13:00:20") }, now)).toBe("14:00:10–14:00:20");
  });

  it("are read out of cells", () => {
    const window = { start: "2026-11-16T13:00:00.000000Z", end: "2026-11-16T13:01:00.000000Z" };
    const type = column("struct<start:timestamp,end:timestamp>");
    expect(format.cell(window, type, now)).toBe("14:00–14:01");
    expect(format.cell("2026-11-16T13:00:07.120000Z", column("timestamp"), now)).toBe("14:00:07");
  });
});

describe("other cells", () => {
  it("are plain text, whatever they hold", () => {
    expect(format.cell(null, column("string"))).toBe("–");
    expect(format.cell(["a", "b", null], column("array<string>"))).toBe("a, b, –");
    expect(format.cell({ a: 1 }, column("struct<a:int>"))).toBe('{"a":1}');
    expect(format.cell("<b>x</b>", column("string"))).toBe("<b>x</b>");
    expect(format.cell("not a time", column("timestamp"))).toBe("not a time");
  });
});

describe("a message of the server", () => {
  it("becomes a sentence", () => {
    expect(["the key was revoked", "Try again.", ""].map(format.sentence)).toEqual(["The key was revoked.", "Try again.", ""]);
  });
});
