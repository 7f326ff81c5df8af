import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { WebSocket } from "ws";
import { Client, RequestError, type ConnectionState } from "../src/index.js";
import { FakeServer, send } from "./fake-server.js";

let server: FakeServer;
let client: Client;
let states: ConnectionState["kind"][];

beforeEach(async () => {
  states = [];
  server = new FakeServer();
  client = new Client(await server.listen(), {
    openSocket: (url) => new WebSocket(url),
    onState: (state) => states.push(state.kind),
  });
});

afterEach(() => {
  client.close();
  server.close();
});

describe("a client in Node", () => {
  it("follows a view, and continues from its position after a broken connection", async () => {
    const view = client.follow("by_city", { where: "n > 0" });
    const rows = (): unknown[] => [...view.rows.entries.values()].map(({ row }) => row);
    await vi.waitFor(() => {
      expect(rows()).toEqual([{ city: "Oslo", n: 1 }]);
    });
    expect(server.messages).toMatchObject([{ type: "subscribe", view: "by_city", where: "n > 0" }]);
    for (const socket of server.sockets) socket.terminate();
    await vi.waitFor(() => {
      expect(states).toEqual(["connecting", "live", "waiting"]);
    });
    client.reconnect();
    await vi.waitFor(() => {
      expect(rows()).toEqual([{ city: "Oslo", n: 2 }]);
    });
    expect(server.messages[1]).toMatchObject({ type: "subscribe", view: "by_city", where: "n > 0", after: "e:0=1" });
  });

  it("follows one view twice under two filters", async () => {
    const [all, some] = [client.follow("by_city"), client.follow("by_city", { where: "n > 5" })];
    await vi.waitFor(() => {
      expect([all.rows.position, some.rows.position]).toEqual(["e:0=1", "e:0=1"]);
    });
    expect(new Set(server.messages.map(({ id }) => id)).size).toBe(2);
    some.stop();
    await vi.waitFor(() => {
      expect(server.messages.at(-1)).toMatchObject({ type: "unsubscribe" });
    });
  });

  it("follows a named query and a SELECT", async () => {
    const top = client.follow({ query: "top_products", params: { n: 3 } });
    const sql = client.follow({ sql: "SELECT max(n) FROM by_city" });
    await vi.waitFor(() => {
      expect([top.rows.entries.size, sql.rows.entries.size]).toEqual([1, 1]);
    });
    expect(server.messages).toEqual([
      { type: "subscribe", id: "top_products-1", query: "top_products", params: { n: 3 } },
      { type: "subscribe", id: "sql-2", sql: "SELECT max(n) FROM by_city" },
    ]);
  });

  it("waits and tries again while nothing listens", async () => {
    const lonely = new Client("http://127.0.0.1:1", {
      openSocket: (url) => new WebSocket(url),
      onState: (state) => states.push(state.kind),
    });
    lonely.open();
    await vi.waitFor(() => {
      expect(states).toEqual(["connecting", "waiting"]);
    });
    lonely.close();
  });

  it("runs a query, and reports that the server does not describe its system", async () => {
    server.answers.set("/v1/query", (_request, response) => {
      send(response, 200, { columns: [], rows: [[7]], truncated: false, elapsed_ms: 1 });
    });
    expect((await client.query("SELECT 7")).rows).toEqual([[7]]);
    const answer = await new Promise((resolve) => {
      client.watchSystem((system, refusal) => {
        resolve([system, refusal?.status]);
      });
    });
    expect(answer).toEqual([null, 404]);
  });

  it("lists the views that the caller may read, although it may not read the system", async () => {
    server.answers.set("/v1/system", (_request, response) => {
      send(response, 403, { title: "Forbidden", detail: "this needs the right admin" });
    });
    server.answers.set("/v1/views", (_request, response) => {
      send(response, 200, { views: [{ name: "by_city" }] });
    });
    const refusal = await new Promise<RequestError | null>((resolve) => {
      client.watchSystem((_system, error) => {
        resolve(error);
      });
    });
    expect([refusal?.status, refusal?.message]).toEqual([403, "this needs the right admin"]);
    const views = await new Promise((resolve) => {
      client.watchViews(resolve);
    });
    expect(views).toEqual([{ name: "by_city" }]);
  });

  it("lists the connections of a server, and closes one", async () => {
    server.answers.set("/v1/connections", (_request, response) => {
      send(response, 200, { connections: [{ id: "4f19c2-17" }] });
    });
    server.answers.set("/v1/connections/4f19c2-17", (_request, response) => {
      send(response, 200, { closed: "4f19c2-17" });
    });
    const connections = await new Promise((resolve) => {
      const stop = client.watchConnections((found) => {
        resolve(found);
        stop();
      });
    });
    expect(connections).toEqual([{ id: "4f19c2-17" }]);
    await client.closeConnection("4f19c2-17");
    expect(server.urls.at(-1)).toBe("DELETE /v1/connections/4f19c2-17");
  });
});
