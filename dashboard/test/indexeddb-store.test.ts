import "fake-indexeddb/auto";
import { IDBFactory } from "fake-indexeddb";
import { beforeEach, describe, expect, it } from "vitest";
import { type Key, type Row, Rows } from "@millstream/client";
import { MAX_STORED, IndexedDbStore } from "../src/state/indexeddb-store";

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
  it("gives a later page the rows and the position of an earlier one", async () => {
    const first = await IndexedDbStore.open("shop", "page-1", clock);
    await first.save("by_city", "", rowsOf("e:0=3", [[["Oslo"], { n: 1 }], [["Rome"], { n: 2 }]]));
    const found = await (await IndexedDbStore.open("shop", "page-2", clock)).load("by_city", "");
    expect(found?.position).toBe("e:0=3");
    expect(found?.rows.map(({ row }) => row)).toEqual([{ n: 1 }, { n: 2 }]);
  });

  it("applies later changes and deletes to the stored rows", async () => {
    const store = await IndexedDbStore.open("shop", "page-1", clock);
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
    const store = await IndexedDbStore.open("shop", "page-1", clock);
    const rows = rowsOf("e:0=0", []);
    for (let n = 0; n < 12; n++) change(rows, `e:0=${n}`, null, { n });
    await store.save("newest", "", rows);
    const found = await store.load("newest", "");
    expect(found?.rows.map(({ row }) => row.n)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
  });

  it("does not return the rows of another filter", async () => {
    const store = await IndexedDbStore.open("shop", "page-1", clock);
    await store.save("by_city", "n > 1", rowsOf("e:0=3", [[["Rome"], { n: 2 }]]));
    expect(await store.load("by_city", "")).toBeNull();
    expect((await store.load("by_city", "n > 1"))?.rows).toHaveLength(1);
  });

  it("replaces the rows of the old filter when the filter changes", async () => {
    const store = await IndexedDbStore.open("shop", "page-1", clock);
    const rows = rowsOf("e:0=3", [[["Oslo"], { n: 1 }], [["Rome"], { n: 2 }]]);
    await store.save("by_city", "", rows);
    rows.replace([{ key: ["Rome"], row: { n: 2 } }], "e:0=4");
    await store.save("by_city", "n > 1", rows);
    expect((await store.load("by_city", "n > 1"))?.rows).toHaveLength(1);
  });

  it("separates the apps of one origin", async () => {
    await (await IndexedDbStore.open("shop", "a", clock)).save("by_city", "", rowsOf("e:0=3", []));
    expect(await (await IndexedDbStore.open("bank", "b", clock)).load("by_city", "")).toBeNull();
  });

  it("lets one tab write while it is open, and another replace all rows after it", async () => {
    const first = await IndexedDbStore.open("shop", "tab-1", clock);
    const second = await IndexedDbStore.open("shop", "tab-2", clock);
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

  it("writes all rows again when a tab becomes the writer again", async () => {
    const first = await IndexedDbStore.open("shop", "tab-1", clock);
    const second = await IndexedDbStore.open("shop", "tab-2", clock);
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

  it("stores nothing while the rows belong to no position", async () => {
    const store = await IndexedDbStore.open("shop", "page-1", clock);
    const rows = rowsOf("e:0=3", [[["Oslo"], { n: 1 }]]);
    rows.apply({ type: "gap", id: "v", position: "f:0=1", reason: "rebuilt" });
    await store.save("by_city", "", rows);
    expect(await store.load("by_city", "")).toBeNull();
  });

  it("drops a view that has become too large", async () => {
    const store = await IndexedDbStore.open("shop", "page-1", clock);
    const rows = rowsOf("e:0=3", [[["Oslo"], { n: 1 }]]);
    await store.save("by_city", "", rows);
    for (let n = 0; n <= MAX_STORED; n++) change(rows, `e:0=${n}`, [n], { n });
    await store.save("by_city", "", rows);
    expect(await store.load("by_city", "")).toBeNull();
  });

  it("deletes rows that no page has used for a week", async () => {
    const first = await IndexedDbStore.open("shop", "page-1", clock);
    await first.save("by_city", "", rowsOf("e:0=3", [[["Oslo"], { n: 1 }]]));
    now += 8 * 24 * 3_600_000;
    expect(await (await IndexedDbStore.open("bank", "page-2", clock)).load("by_city", "")).toBeNull();
    expect(await first.load("by_city", "")).toBeNull();
  });
});
