import { describe, expect, it } from "vitest";
import type { Key, Row } from "../src/messages.js";
import { defaultOrder, firstRows } from "../src/order.js";
import { Rows } from "../src/rows.js";
import type { ViewDescription } from "../src/system.js";

const WINDOW = "struct<start:timestamp,end:timestamp>";
const view: ViewDescription = {
  name: "v",
  inputs: [],
  key: ["window", "topic"],
  columns: [
    { name: "window", type: WINDOW },
    { name: "topic", type: "string" },
    { name: "n", type: "bigint" },
  ],
  mode: "real_time",
  reason: "",
};

function rowsOf(rows: readonly [Key, Row][]): Rows {
  const made = new Rows();
  made.replace(rows.map(([key, row]) => ({ key, row })), "e:0=1");
  return made;
}

const window = (hour: number): { start: string; end: string } => ({
  start: `2026-11-16T${String(hour).padStart(2, "0")}:00:00.000000Z`,
  end: `2026-11-16T${String(hour + 1).padStart(2, "0")}:00:00.000000Z`,
});

describe("the order of a table", () => {
  it("is newest window first, then the largest number, then the key", () => {
    const all: Row[] = [
      { window: window(9), topic: "a", n: 50 },
      { window: window(10), topic: "c", n: 3 },
      { window: window(10), topic: "b", n: 3 },
      { window: window(10), topic: "d", n: 10 },
    ];
    const rows = rowsOf(all.map((row) => [[row.window ?? null, row.topic ?? null], row]));
    expect(firstRows(rows, defaultOrder(view), 9).map(({ row }) => row.topic)).toEqual(["d", "b", "c", "a"]);
  });

  it("is newest first for a view without a key", () => {
    const rows = rowsOf([[null, { n: 1 }], [null, { n: 2 }], [null, { n: 3 }]]);
    expect(firstRows(rows, defaultOrder({ ...view, key: null }), 2).map(({ row }) => row.n)).toEqual([3, 2]);
  });

  it("gives the same first rows with and without a limit", () => {
    const rows = rowsOf(Array.from({ length: 500 }, (_, n) => [[n], { n: (n * 7919) % 501 }]));
    const order = [{ column: "n", descending: true }];
    const whole = firstRows(rows, order, 500).map(({ row }) => row.n);
    expect(whole).toEqual([...whole].sort((a, b) => Number(b) - Number(a)));
    expect(firstRows(rows, order, 7).map(({ row }) => row.n)).toEqual(whole.slice(0, 7));
  });

  it("compares long numbers by value, and puts nulls last when descending", () => {
    const rows = rowsOf([[[1], { n: "9007199254740993" }], [[2], { n: "10007199254740993" }], [[3], { n: null }]]);
    expect(firstRows(rows, [{ column: "n", descending: true }], 3).map(({ key }) => key)).toEqual([[2], [1], [3]]);
  });
});
