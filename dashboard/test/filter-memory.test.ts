import { Subscription, type Message } from "@millstream/client";
import { beforeEach, describe, expect, it } from "vitest";
import { FilterMemory } from "../src/state/filter-memory";

const snapshot: Message = { type: "snapshot", id: "1", position: "e:0=4", rows: [] };
const refusal: Message = { type: "error", id: "1", title: "Bad Request", detail: "no column m" };
const memory = new FilterMemory("shop", "v");

async function follow(): Promise<Subscription> {
  const connection = { subscribe: () => undefined, unsubscribe: () => undefined, tell: () => true };
  const subscription = new Subscription("1", { view: "v" }, connection, {
    where: memory.load(),
    onFilter: (where, error) => {
      if (error === null) memory.save(where);
    },
  });
  await subscription.start();
  return subscription;
}

beforeEach(() => {
  localStorage.clear();
});

describe("the filter of a view", () => {
  it("is remembered for the next page once the server has accepted it", async () => {
    const subscription = await follow();
    subscription.filter(" n > 1 ");
    expect(memory.load()).toBe("");
    subscription.receive(snapshot);
    expect((await follow()).where).toBe("n > 1");
  });

  it("is forgotten when it no longer fits", async () => {
    memory.save("m > 1");
    const subscription = await follow();
    subscription.receive(refusal);
    subscription.receive(snapshot);
    expect(localStorage.getItem("millstream.where.shop.v")).toBeNull();
  });

  it("is kept apart for each view and app", () => {
    memory.save("n > 1");
    expect(new FilterMemory("shop", "w").load()).toBe("");
    expect(new FilterMemory("bank", "v").load()).toBe("");
  });
});
