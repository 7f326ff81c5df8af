import { describe, expect, it, vi } from "vitest";
import type { Subscriber } from "../src/connection.js";
import type { Message } from "../src/messages.js";
import { Subscription } from "../src/subscription.js";

interface Request {
  readonly where: string;
  readonly after: string | null;
}

function follow(where = "", storedPosition: string | null = null): {
  requests: Request[];
  filters: [string, string | null][];
  subscription: Subscription;
} {
  const requests: Request[] = [];
  const filters: [string, string | null][] = [];
  const connection = {
    subscribe: (_id: string, subscriber: Subscriber) => {
      requests.push({ where: subscriber.where, after: subscriber.after });
    },
    unsubscribe: () => undefined,
  };
  const stored = storedPosition === null ? null : { position: storedPosition, rows: [] };
  const subscription = new Subscription("1", "v", connection, {
    where,
    store: { load: () => Promise.resolve(stored), save: () => Promise.resolve(true) },
    onFilter: (filter, error) => {
      filters.push([filter, error]);
    },
  });
  return { requests, filters, subscription };
}

const snapshot: Message = { type: "snapshot", id: "1", position: "e:0=4", rows: [{ key: ["a"], row: { n: 1 } }] };
const refusal: Message = { type: "error", id: "1", title: "Bad Request", detail: "no column m" };

describe("a subscription", () => {
  it("starts with a snapshot when nothing is stored", async () => {
    const { requests, subscription } = follow();
    await subscription.start();
    expect(requests).toEqual([{ where: "", after: null }]);
  });

  it("continues from the stored position", async () => {
    const { requests, subscription } = follow("", "e:0=3");
    await subscription.start();
    expect(requests).toEqual([{ where: "", after: "e:0=3" }]);
  });

  it("requests a snapshot when its filter changes, and reports the filter that is in effect", async () => {
    const { requests, filters, subscription } = follow("", "e:0=3");
    await subscription.start();
    subscription.filter(" n > 1 ");
    expect(requests.at(-1)).toEqual({ where: "n > 1", after: null });
    subscription.receive(snapshot);
    expect(filters.at(-1)).toEqual(["n > 1", null]);
    const next = follow("n > 1");
    await next.subscription.start();
    expect(next.requests).toEqual([{ where: "n > 1", after: null }]);
  });

  it("returns to the filter in effect when the server refuses a new one", async () => {
    const { requests, filters, subscription } = follow();
    await subscription.start();
    subscription.receive(snapshot);
    subscription.filter("m > 1");
    subscription.receive(refusal);
    expect(filters.at(-1)).toEqual(["", "no column m"]);
    expect(requests.at(-1)).toEqual({ where: "", after: "e:0=4" });
    expect(subscription.rows.entries.size).toBe(1);
  });

  it("drops a first filter that the server refuses, and reports why", async () => {
    const { requests, filters, subscription } = follow("m > 1");
    await subscription.start();
    subscription.receive(refusal);
    expect(filters.at(-1)).toEqual(["m > 1", "no column m"]);
    expect(requests.at(-1)).toEqual({ where: "", after: null });
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
});
