import { beforeEach, describe, expect, it, vi } from "vitest";
import type { Wanted } from "../src/net/connection";
import type { Message } from "../src/net/protocol";
import type { Store } from "../src/state/store";
import { Subscription } from "../src/state/subscription";

interface Asked {
  readonly where: string;
  readonly after: string | null;
}

function stage(stored: { position: string } | null = null): {
  asked: Asked[];
  filters: [string, string | null][];
  subscription: Subscription;
} {
  const asked: Asked[] = [];
  const filters: [string, string | null][] = [];
  const connection = {
    subscribe: (_id: string, wanted: Wanted) => {
      asked.push({ where: wanted.where, after: wanted.after() });
    },
    unsubscribe: () => undefined,
  };
  const watcher = {
    onRows: () => undefined,
    onFilter: (where: string, error: string | null) => {
      filters.push([where, error]);
    },
    onLag: () => undefined,
  };
  const found = stored === null ? null : { position: stored.position, rows: [] };
  const store = { load: () => Promise.resolve(found), save: () => Promise.resolve(true) } as unknown as Store;
  const subscription = new Subscription("v", connection, Promise.resolve(store), watcher, "slot");
  return { asked, filters, subscription };
}

const snapshot: Message = { type: "snapshot", id: "v", position: "e:0=4", rows: [{ key: ["a"], row: { n: 1 } }] };
const refusal: Message = { type: "error", id: "v", title: "Bad Request", detail: "no column m" };

beforeEach(() => {
  localStorage.clear();
});

describe("a subscription", () => {
  it("starts with a snapshot when nothing is stored", async () => {
    const { asked, subscription } = stage();
    await subscription.start();
    expect(asked).toEqual([{ where: "", after: null }]);
  });

  it("goes on from the stored position", async () => {
    const { asked, subscription } = stage({ position: "e:0=3" });
    await subscription.start();
    expect(asked).toEqual([{ where: "", after: "e:0=3" }]);
  });

  it("asks for a snapshot when its filter changes, and remembers the filter for the next page", async () => {
    const { asked, filters, subscription } = stage({ position: "e:0=3" });
    await subscription.start();
    subscription.filter(" n > 1 ");
    expect(asked.at(-1)).toEqual({ where: "n > 1", after: null });
    subscription.receive(snapshot);
    expect(filters.at(-1)).toEqual(["n > 1", null]);
    const next = stage();
    await next.subscription.start();
    expect(next.asked).toEqual([{ where: "n > 1", after: null }]);
  });

  it("goes back to the filter that held when the server refuses a new one", async () => {
    const { asked, filters, subscription } = stage();
    await subscription.start();
    subscription.receive(snapshot);
    subscription.filter("m > 1");
    subscription.receive(refusal);
    expect(filters.at(-1)).toEqual(["", "no column m"]);
    expect(asked.at(-1)).toEqual({ where: "", after: "e:0=4" });
    expect(subscription.rows.entries.size).toBe(1);
  });

  it("drops a remembered filter that no longer fits, and says why", async () => {
    localStorage.setItem("slot", "m > 1");
    const { asked, filters, subscription } = stage();
    await subscription.start();
    subscription.receive(refusal);
    expect(filters.at(-1)).toEqual(["m > 1", "no column m"]);
    expect(asked.at(-1)).toEqual({ where: "", after: null });
    subscription.receive(snapshot);
    expect(localStorage.getItem("slot")).toBeNull();
  });

  it("asks again later for a view that is not there yet, unless it was stopped", async () => {
    vi.useFakeTimers();
    const { asked, subscription } = stage();
    await subscription.start();
    subscription.receive(refusal);
    expect(asked).toHaveLength(1);
    vi.advanceTimersByTime(3_000);
    expect(asked).toHaveLength(2);
    subscription.receive(refusal);
    subscription.stop();
    vi.advanceTimersByTime(3_000);
    expect(asked).toHaveLength(2);
    vi.useRealTimers();
  });
});
