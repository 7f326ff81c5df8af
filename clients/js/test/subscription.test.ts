import { describe, expect, it, vi } from "vitest";
import type { Subscriber } from "../src/connection.js";
import type { Lag, Message } from "../src/messages.js";
import { Subscription, type SubscriptionOptions } from "../src/subscription.js";

type Told = [type: string, members: object];

function follow(
  where = "",
  storedPosition: string | null = null,
  options: SubscriptionOptions = {},
): {
  requests: object[];
  told: Told[];
  filters: [string, string | null][];
  subscription: Subscription;
  connection: { known: boolean };
} {
  const requests: object[] = [];
  const told: Told[] = [];
  const filters: [string, string | null][] = [];
  const connection = {
    known: true,
    subscribe: (_id: string, subscriber: Subscriber) => {
      requests.push(subscriber.request());
    },
    unsubscribe: () => undefined,
    tell: (_id: string, type: string, members: object = {}) => {
      if (connection.known) told.push([type, members]);
      return connection.known;
    },
  };
  const stored = storedPosition === null ? null : { position: storedPosition, rows: [] };
  const subscription = new Subscription("1", { view: "v" }, connection, {
    ...options,
    where,
    store: { load: () => Promise.resolve(stored), save: () => Promise.resolve(true) },
    onFilter: (filter, error) => {
      filters.push([filter, error]);
    },
  });
  return { requests, told, filters, subscription, connection };
}

const snapshot: Message = { type: "snapshot", id: "1", position: "e:0=4", rows: [{ key: ["a"], row: { n: 1 } }] };
const refusal: Message = { type: "error", id: "1", title: "Bad Request", detail: "no column m" };

describe("a subscription", () => {
  it("starts with a snapshot when nothing is stored", async () => {
    const { requests, subscription } = follow();
    await subscription.start();
    expect(requests).toEqual([{ view: "v" }]);
  });

  it("continues from the stored position", async () => {
    const { requests, subscription } = follow("", "e:0=3");
    await subscription.start();
    expect(requests).toEqual([{ view: "v", after: "e:0=3" }]);
  });

  it("requests a snapshot when its filter changes, and reports the filter that is in effect", async () => {
    const { requests, filters, subscription } = follow("", "e:0=3");
    await subscription.start();
    subscription.filter(" n > 1 ");
    expect(requests.at(-1)).toEqual({ view: "v", where: "n > 1" });
    subscription.receive(snapshot);
    expect(filters.at(-1)).toEqual(["n > 1", null]);
    const next = follow("n > 1");
    await next.subscription.start();
    expect(next.requests).toEqual([{ view: "v", where: "n > 1" }]);
  });

  it("returns to the filter in effect when the server refuses a new one", async () => {
    const { requests, filters, subscription } = follow();
    await subscription.start();
    subscription.receive(snapshot);
    subscription.filter("m > 1");
    subscription.receive(refusal);
    expect(filters.at(-1)).toEqual(["", "no column m"]);
    expect(requests.at(-1)).toEqual({ view: "v", after: "e:0=4" });
    expect(subscription.rows.entries.size).toBe(1);
  });

  it("drops a first filter that the server refuses, and reports why", async () => {
    const { requests, filters, subscription } = follow("m > 1");
    await subscription.start();
    subscription.receive(refusal);
    expect(filters.at(-1)).toEqual(["m > 1", "no column m"]);
    expect(requests.at(-1)).toEqual({ view: "v" });
    subscription.receive(snapshot);
    expect(filters.at(-1)).toEqual(["", null]);
  });

  it("requests a view that does not exist yet again later, unless it was stopped", async () => {
    vi.useFakeTimers();
    const { requests, subscription } = follow();
    await subscription.start();
    subscription.receive(refusal);
    expect(requests).toHaveLength(1);
    vi.advanceTimersByTime(3_000);
    expect(requests).toHaveLength(2);
    subscription.receive(refusal);
    subscription.stop();
    vi.advanceTimersByTime(3_000);
    expect(requests).toHaveLength(2);
    vi.useRealTimers();
  });

  it("does not ask again for a view that the caller may not read", async () => {
    vi.useFakeTimers();
    const { requests, filters, subscription } = follow();
    await subscription.start();
    subscription.receive({ type: "error", id: "1", title: "Forbidden", detail: "this needs read:v" });
    vi.advanceTimersByTime(60_000);
    expect(requests).toHaveLength(1);
    expect(filters.at(-1)).toEqual(["", "this needs read:v"]);
    vi.useRealTimers();
  });

  it("keeps the old filter in effect until the last page of the new rows", async () => {
    const { filters, subscription } = follow();
    await subscription.start();
    subscription.filter("n > 1");
    subscription.receive({ ...snapshot, page: 1, last: false });
    expect(filters.at(-1)).toEqual(["", null]);
    subscription.receive({ ...snapshot, page: 2, last: true });
    expect(filters.at(-1)).toEqual(["n > 1", null]);
  });

  it("requests a snapshot again whose pages did not all come", async () => {
    const { requests, subscription } = follow("", "e:0=3");
    await subscription.start();
    subscription.receive({ type: "gap", id: "1", position: "f:0=1", reason: "rebuilt" });
    subscription.receive({ ...snapshot, page: 1, last: false });
    expect(subscription.rows.loading).not.toBeNull();
    requests.push(subscription.request()); // as after a broken connection
    expect(requests.at(-1)).toEqual({ view: "v" });
    expect(subscription.rows.loading).toBeNull();
  });

  it("sends its pace, its columns and its limit", async () => {
    const { requests, subscription } = follow("", null, { when_slow: "conflate", max_rate: 5, select: ["n"], limit: 100 });
    await subscription.start();
    expect(requests).toEqual([{ view: "v", when_slow: "conflate", max_rate: 5, select: ["n"], limit: 100 }]);
  });

  it("counts what the server has left out, and reports its lag", async () => {
    const lags: Lag[] = [];
    const skips: number[] = [];
    const { subscription } = follow("", null, { onLag: (lag) => lags.push(lag), onSkipped: (count) => skips.push(count) });
    await subscription.start();
    subscription.receive({ ...snapshot, skipped: 3 });
    subscription.receive({ type: "lag", id: "1", position: "e:0=5", behind: 7, seconds: 1.5, growing: true, skipped: 4 });
    expect(lags).toMatchObject([{ behind: 7, seconds: 1.5, growing: true }]);
    expect([skips, subscription.skipped]).toEqual([[3, 4], 7]);
  });

  it("pauses and resumes on the same connection", async () => {
    const { requests, told, subscription } = follow();
    await subscription.start();
    subscription.pause();
    expect(subscription.active).toBe(false);
    subscription.resume();
    expect(subscription.active).toBe(true);
    expect(told.map(([type]) => type)).toEqual(["pause", "resume"]);
    expect(requests).toHaveLength(1);
  });

  it("subscribes again if the connection broke while it was paused", async () => {
    const { requests, subscription, connection } = follow();
    await subscription.start();
    subscription.receive(snapshot);
    subscription.pause();
    connection.known = false;
    subscription.resume();
    expect(requests.at(-1)).toEqual({ view: "v", after: "e:0=4" });
  });

  it("changes its filter and pace while connected, in effect when the server says so", async () => {
    const { requests, told, filters, subscription } = follow("n > 1", null, { max_rate: 5 });
    await subscription.start();
    subscription.receive(snapshot);
    subscription.update({ where: "n > 2", max_rate: null });
    subscription.update({ when_slow: "conflate" });
    expect(told).toEqual([["update", { where: "n > 2", max_rate: null }], ["update", { when_slow: "conflate" }]]);
    subscription.receive({ type: "change", id: "1", op: "delete", key: ["a"], row: null, position: "e:0=4" });
    subscription.receive({ type: "updated", id: "1", paused: false, position: "e:0=4" });
    expect(filters.at(-1)).toEqual(["n > 1", null]);
    subscription.receive({ type: "updated", id: "1", paused: false, position: "e:0=4" });
    expect(filters.at(-1)).toEqual(["n > 2", null]);
    expect([subscription.rows.entries.size, requests.length]).toEqual([0, 1]);
    expect(subscription.request()).toEqual({ view: "v", where: "n > 2", when_slow: "conflate", after: "e:0=4" });
  });

  it("starts again with a snapshot if the connection breaks before an update is in effect", async () => {
    const { subscription } = follow();
    await subscription.start();
    subscription.receive(snapshot);
    subscription.update({ where: "n > 2" });
    expect(subscription.request()).toEqual({ view: "v", where: "n > 2" });
    subscription.receive(snapshot);
    expect(subscription.request()).toEqual({ view: "v", where: "n > 2", after: "e:0=4" });
  });

  it("goes on as it was when the server refuses an update", async () => {
    const { requests, filters, subscription } = follow();
    await subscription.start();
    subscription.receive(snapshot);
    subscription.update({ where: "m > 1" });
    subscription.receive(refusal);
    expect(filters.at(-1)).toEqual(["", "no column m"]);
    expect(requests).toHaveLength(1);
    expect(subscription.request()).toEqual({ view: "v", after: "e:0=4" });
  });
});
