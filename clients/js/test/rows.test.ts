import { describe, expect, it } from "vitest";
import type { Change, Key, Row, Snapshot } from "../src/messages.js";
import { ranked } from "../src/order.js";
import { MAX_EVENTS, MAX_ROWS, Rows } from "../src/rows.js";

const snapshot = (position: string, rows: [Key, Row][]): Snapshot => ({
  type: "snapshot",
  id: "v",
  position,
  rows: rows.map(([key, row]) => ({ key, row })),
});
const upsert = (position: string, key: Key, row: Row): Change => ({ type: "change", id: "v", op: "upsert", key, row, position });
const remove = (position: string, key: Key): Change => ({ type: "change", id: "v", op: "delete", key, row: null, position });
const held = (rows: Rows): Row[] => [...rows.entries.values()].map((entry) => entry.row);

describe("the rows of a subscription", () => {
  it("are those of the snapshot, with its position", () => {
    const rows = new Rows();
    rows.apply(snapshot("e:0=5", [[["Oslo"], { city: "Oslo", n: 2 }]]));
    expect(held(rows)).toEqual([{ city: "Oslo", n: 2 }]);
    expect(rows.position).toBe("e:0=5");
  });

  it("follow each change, and the position follows with them", () => {
    const rows = new Rows();
    rows.apply(snapshot("e:0=5", [[["Oslo"], { n: 2 }], [["Rome"], { n: 1 }]]));
    rows.apply(upsert("e:0=6", ["Oslo"], { n: 3 }));
    rows.apply(remove("e:0=7", ["Rome"]));
    expect(held(rows)).toEqual([{ n: 3 }]);
    expect(rows.position).toBe("e:0=7");
  });

  it("are replaced by a new snapshot", () => {
    const rows = new Rows();
    rows.apply(snapshot("e:0=5", [[["Oslo"], { n: 2 }]]));
    rows.apply(snapshot("f:0=1", [[["Rome"], { n: 9 }]]));
    expect(held(rows)).toEqual([{ n: 9 }]);
  });

  it("stay visible after a gap, but no subscription continues from them", () => {
    const rows = new Rows();
    rows.apply(snapshot("e:0=5", [[["Oslo"], { n: 2 }]]));
    rows.apply({ type: "gap", id: "v", position: "f:0=9", reason: "compacted" });
    expect(held(rows)).toEqual([{ n: 2 }]);
    expect(rows.position).toBeNull();
  });

  it("ignore changes before the first snapshot", () => {
    const rows = new Rows();
    expect(rows.apply(upsert("e:0=6", ["Oslo"], { n: 3 }))).toBe(false);
    expect(rows.position).toBeNull();
    expect(held(rows)).toEqual([]);
  });

  it("ignore the delete of a row that they do not have", () => {
    const rows = new Rows();
    rows.apply(snapshot("e:0=5", [[["Oslo"], { n: 2 }]]));
    expect(rows.apply(remove("e:0=6", ["Rome"]))).toBe(false);
    expect(held(rows)).toHaveLength(1);
  });

  it("distinguish keys by value and type", () => {
    const rows = new Rows();
    rows.apply(snapshot("e:0=1", [[["a,b"], { n: 1 }], [["a", "b"], { n: 2 }], [[1], { n: 3 }], [["1"], { n: 4 }]]));
    expect(rows.entries.size).toBe(4);
  });

  it("are only the newest events of a view without a key", () => {
    const rows = new Rows();
    rows.apply(snapshot("e:0=0", []));
    for (let n = 0; n < MAX_EVENTS + 5; n++) rows.apply(upsert(`e:0=${n + 1}`, null, { n }));
    expect(rows.entries.size).toBe(MAX_EVENTS);
    expect(held(rows)[0]).toEqual({ n: 5 });
  });

  it("are truncated at a limit, and still apply changes of their keys", () => {
    const rows = new Rows();
    rows.apply(snapshot("e:0=0", Array.from({ length: MAX_ROWS + 1 }, (_, n) => [[n], { n }])));
    expect(rows.entries.size).toBe(MAX_ROWS);
    expect(rows.truncated).toBe(true);
    rows.apply(upsert("e:0=1", [7], { n: -7 }));
    expect(rows.entries.get("[7]")?.row).toEqual({ n: -7 });
  });

  it("show which of them came as a change", () => {
    const rows = new Rows();
    rows.apply(snapshot("e:0=5", [[["Oslo"], { n: 2 }]]));
    rows.apply(upsert("e:0=6", ["Rome"], { n: 1 }));
    const changed = [...rows.entries.values()].filter((entry) => entry.sequence > rows.snapshotSequence);
    expect(changed.map((entry) => entry.row)).toEqual([{ n: 1 }]);
  });

  describe("while a snapshot comes in pages", () => {
    const page = (number: number, last: boolean, rows: [Key, Row][]): Snapshot => ({ ...snapshot("e:0=9", rows), page: number, last, total: 3 });
    const old = (): Rows => {
      const rows = new Rows();
      rows.apply(snapshot("e:0=5", [[["Oslo"], { n: 2 }]]));
      return rows;
    };

    it("are the old ones with the old position, until the last page has come", () => {
      const rows = old();
      expect(rows.apply(page(1, false, [[["Rome"], { n: 9 }], [["Bonn"], { n: 8 }]]))).toBe(true);
      expect([held(rows), rows.position]).toEqual([[{ n: 2 }], "e:0=5"]);
      expect(rows.loading).toMatchObject({ received: 2, total: 3 });
      rows.apply(page(2, true, [[["Oslo"], { n: 7 }]]));
      expect([held(rows), rows.position]).toEqual([[{ n: 9 }, { n: 8 }, { n: 7 }], "e:0=9"]);
      expect(rows.loading).toBeNull();
    });

    it("get the changes of pages that have come, and the position of the last one", () => {
      const rows = old();
      rows.apply(page(1, false, [[["Rome"], { n: 9 }], [["Bonn"], { n: 8 }]]));
      rows.apply(upsert("e:0=10", ["Rome"], { n: 10 }));
      rows.apply(remove("e:0=11", ["Bonn"]));
      expect([held(rows), rows.position]).toEqual([[{ n: 2 }], "e:0=5"]);
      rows.apply(page(2, true, []));
      expect([held(rows), rows.position]).toEqual([[{ n: 10 }], "e:0=11"]);
    });

    it("ignore the rest of a snapshot that starts again", () => {
      const rows = old();
      rows.apply(page(1, false, [[["Rome"], { n: 9 }]]));
      rows.stopLoading();
      expect(rows.apply(page(2, true, [[["Bonn"], { n: 8 }]]))).toBe(false);
      expect([held(rows), rows.position]).toEqual([[{ n: 2 }], "e:0=5"]);
    });

    it("hold no more rows than otherwise", () => {
      const rows = old();
      const keys = (from: number): [Key, Row][] => Array.from({ length: MAX_ROWS }, (_, n) => [[from + n], {}]);
      rows.apply(page(1, false, keys(0)));
      rows.apply(page(2, true, keys(MAX_ROWS)));
      expect([rows.entries.size, rows.truncated]).toEqual([MAX_ROWS, true]);
    });
  });

  it("say that the server left some of them out", () => {
    const rows = new Rows();
    rows.apply({ ...snapshot("e:0=5", [[["Oslo"], { n: 2 }]]), truncated: true });
    expect(rows.truncated).toBe(true);
  });

  it("keep the position of a lag report, with which a filtered view resumes", () => {
    const rows = new Rows();
    rows.apply(snapshot("e:0=5", [[["Oslo"], { n: 2 }]]));
    rows.apply({ type: "lag", id: "v", position: "e:0=900", behind: 0 });
    expect(rows.position).toBe("e:0=900");
  });

  it("of a query change from one result to the next, never by half, and keep their order", () => {
    const rows = new Rows();
    const top: Snapshot = { ...snapshot("a:0=0", []), rows: [{ key: ["Oslo"], row: { n: 2 }, rank: 1 }, { key: ["Rome"], row: { n: 1 }, rank: 2 }] };
    rows.apply(top);
    expect(rows.apply({ ...upsert("b:0=1", ["Oslo"], { n: 2 }), rank: 2, more: 1 })).toBe(false);
    expect([ranked(rows).map(({ key }) => key), rows.position]).toEqual([[["Oslo"], ["Rome"]], "a:0=0"]);
    expect(rows.apply({ ...upsert("b:0=0", ["Rome"], { n: 3 }), rank: 1, more: 0 })).toBe(true);
    expect([ranked(rows).map(({ key }) => key), rows.position]).toEqual([[["Rome"], ["Oslo"]], "b:0=0"]);
  });

  it("of a query forget a part of a result when a snapshot comes instead of its rest", () => {
    const rows = new Rows();
    rows.apply(snapshot("a:0=0", [[["Oslo"], { n: 2 }]]));
    rows.apply({ ...remove("b:0=1", ["Oslo"]), more: 1 });
    rows.apply(snapshot("c:0=0", [[["Oslo"], { n: 4 }]]));
    rows.apply({ ...upsert("d:0=0", ["Bonn"], { n: 1 }), more: 0 });
    expect(held(rows)).toEqual([{ n: 4 }, { n: 1 }]);
  });
});
