import "fake-indexeddb/auto";
import { IDBFactory } from "fake-indexeddb";
import { beforeEach, describe, expect, it } from "vitest";
import type { Key, Row } from "../src/net/protocol";
import { Rows } from "../src/state/rows";
import { MOST_STORED, Store } from "../src/state/store";

let now = 1_000_000;
const clock = (): number => now;

function rowsOf(position: string, rows: [Key, Row][]): Rows {
  const made = new Rows();
  made.replace(rows.map(([key, row]) => ({ key, row })), position);
  return made;
}

function change(rows: Rows, position: string, key: Key, row: Row | null): void {
  rows.apply({ type: "change", id: "v", op: row === null ? "delete" : "upsert", key, row, position });
}

beforeEach(() => {
  globalThis.indexedDB = new IDBFactory();
  now = 1_000_000;
});

describe("the store", () => {
  it("gives a later page the rows and the position of the earlier one", async () => {
    const first = await Store.open("shop", "page-1", clock);
    await first.save("by_city", "", rowsOf("e:0=3", [[["Oslo"], { n: 1 }], [["Rome"], { n: 2 }]]));
    const found = await (await Store.open("shop", "page-2", clock)).load("by_city", "");
    expect(found?.position).toBe("e:0=3");
    expect(found?.rows.map(({ row }) => row)).toEqual([{ n: 1 }, { n: 2 }]);
  });

  it("writes later changes and deletes onto what is there", async () => {
    const store = await Store.open("shop", "page-1", clock);
    const rows = rowsOf("e:0=3", [[["Oslo"], { n: 1 }], [["Rome"], { n: 2 }]]);
    await store.save("by_city", "", rows);
    change(rows, "e:0=4", ["Oslo"], { n: 5 });
    change(rows, "e:0=5", ["Rome"], null);
    await store.save("by_city", "", rows);
    const found = await store.load("by_city", "");
    expect(found?.position).toBe("e:0=5");
    expect(found?.rows.map(({ key, row }) => [key, row])).toEqual([[["Oslo"], { n: 5 }]]);
  });

  it("keeps the order of events without key", async () => {
    const store = await Store.open("shop", "page-1", clock);
    const rows = rowsOf("e:0=0", []);
    for (let n = 0; n < 12; n++) change(rows, `e:0=${n}`, null, { n });
    await store.save("newest", "", rows);
    const found = await store.load("newest", "");
    expect(found?.rows.map(({ row }) => row.n)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
  });

  it("does not hand rows of one filter to another", async () => {
    const store = await Store.open("shop", "page-1", clock);
    await store.save("by_city", "n > 1", rowsOf("e:0=3", [[["Rome"], { n: 2 }]]));
    expect(await store.load("by_city", "")).toBeNull();
    expect((await store.load("by_city", "n > 1"))?.rows).toHaveLength(1);
  });

  it("replaces the rows of the old filter when the filter changes", async () => {
    const store = await Store.open("shop", "page-1", clock);
    const rows = rowsOf("e:0=3", [[["Oslo"], { n: 1 }], [["Rome"], { n: 2 }]]);
    await store.save("by_city", "", rows);
    rows.replace([{ key: ["Rome"], row: { n: 2 } }], "e:0=4");
    await store.save("by_city", "n > 1", rows);
    expect((await store.load("by_city", "n > 1"))?.rows).toHaveLength(1);
  });

  it("keeps apps of one origin apart", async () => {
    await (await Store.open("shop", "a", clock)).save("by_city", "", rowsOf("e:0=3", []));
    expect(await (await Store.open("bank", "b", clock)).load("by_city", "")).toBeNull();
  });

  it("lets one tab write while it lives, and another take over whole when it is gone", async () => {
    const first = await Store.open("shop", "tab-1", clock);
    const second = await Store.open("shop", "tab-2", clock);
    await first.save("v", "", rowsOf("e:0=9", [[["a"], { n: 9 }], [["b"], { n: 9 }]]));
    const behind = rowsOf("e:0=7", [[["a"], { n: 7 }]]);
    expect(await second.save("v", "", behind)).toBe(false);
    expect((await second.load("v", ""))?.position).toBe("e:0=9");
    now += 6_000;
    expect(await second.save("v", "", behind)).toBe(true);
    const found = await second.load("v", "");
    expect(found?.position).toBe("e:0=7");
    expect(found?.rows.map(({ row }) => row)).toEqual([{ n: 7 }]);
  });

  it("writes everything again when a tab gets its turn back", async () => {
    const first = await Store.open("shop", "tab-1", clock);
    const second = await Store.open("shop", "tab-2", clock);
    const ahead = rowsOf("e:0=9", [[["a"], { n: 9 }], [["b"], { n: 9 }]]);
    await first.save("v", "", ahead);
    now += 6_000;
    await second.save("v", "", rowsOf("e:0=7", [[["a"], { n: 7 }], [["c"], { n: 7 }]]));
    now += 6_000;
    change(ahead, "e:0=10", ["b"], { n: 10 });
    expect(await first.save("v", "", ahead)).toBe(true);
    const found = await first.load("v", "");
    expect(found?.position).toBe("e:0=10");
    expect(found?.rows.map(({ row }) => row)).toEqual([{ n: 9 }, { n: 10 }]);
  });

  it("stores nothing while the rows stand for no position", async () => {
    const store = await Store.open("shop", "page-1", clock);
    const rows = rowsOf("e:0=3", [[["Oslo"], { n: 1 }]]);
    rows.apply({ type: "gap", id: "v", position: "f:0=1", reason: "made anew" });
    await store.save("by_city", "", rows);
    expect(await store.load("by_city", "")).toBeNull();
  });

  it("drops a view that has outgrown it", async () => {
    const store = await Store.open("shop", "page-1", clock);
    const rows = rowsOf("e:0=3", [[["Oslo"], { n: 1 }]]);
    await store.save("by_city", "", rows);
    for (let n = 0; n <= MOST_STORED; n++) change(rows, `e:0=${n}`, [n], { n });
    await store.save("by_city", "", rows);
    expect(await store.load("by_city", "")).toBeNull();
  });

  it("forgets what nobody came back for in a week", async () => {
    const first = await Store.open("shop", "page-1", clock);
    await first.save("by_city", "", rowsOf("e:0=3", [[["Oslo"], { n: 1 }]]));
    now += 8 * 24 * 3_600_000;
    expect(await (await Store.open("bank", "page-2", clock)).load("by_city", "")).toBeNull();
    expect(await first.load("by_city", "")).toBeNull();
  });
});
