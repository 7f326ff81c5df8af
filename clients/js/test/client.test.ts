import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { WebSocket, WebSocketServer } from "ws";
import { Client, type ConnectionState } from "../src/index.js";

type Request = Record<string, unknown>;

let server: Server;
let sockets: WebSocketServer;
let requests: Request[];
let client: Client;
let states: ConnectionState["kind"][];

/** Answers a new subscription with one row, and a continued one with one change. */
function answer(socket: WebSocket, request: Request): void {
  const send = (message: object): void => {
    socket.send(JSON.stringify({ id: request.id, ...message }));
  };
  if (request.type !== "subscribe") return;
  if (request.after === undefined) {
    send({ type: "snapshot", position: "e:0=1", rows: [{ key: ["Oslo"], row: { city: "Oslo", n: 1 } }] });
  } else {
    send({ type: "change", op: "upsert", key: ["Oslo"], row: { city: "Oslo", n: 2 }, position: "e:0=2" });
  }
}

beforeEach(async () => {
  requests = [];
  states = [];
  server = createServer((request, response) => {
    const refused = request.url !== "/v1/query";
    response.writeHead(refused ? 404 : 200, { "content-type": "application/json" });
    response.end(JSON.stringify(refused ? { title: "Not Found" } : { columns: [], rows: [[7]], truncated: false, elapsed_ms: 1 }));
  });
  sockets = new WebSocketServer({ server, path: "/v1/connect" });
  sockets.on("connection", (socket) => {
    socket.on("message", (data: Buffer) => {
      const request = JSON.parse(data.toString()) as Request;
      requests.push(request);
      answer(socket, request);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  client = new Client(`http://127.0.0.1:${port}`, {
    openSocket: (url) => new WebSocket(url),
    onState: (state) => states.push(state.kind),
  });
});

afterEach(() => {
  client.close();
  sockets.close();
  server.close();
});

describe("a client in Node", () => {
  it("follows a view, and continues from its position after a broken connection", async () => {
    const view = client.follow("by_city", { where: "n > 0" });
    const rows = (): unknown[] => [...view.rows.entries.values()].map(({ row }) => row);
    await vi.waitFor(() => {
      expect(rows()).toEqual([{ city: "Oslo", n: 1 }]);
    });
    expect(requests).toMatchObject([{ type: "subscribe", view: "by_city", where: "n > 0" }]);
    for (const socket of sockets.clients) socket.terminate();
    await vi.waitFor(() => {
      expect(states).toEqual(["connecting", "live", "waiting"]);
    });
    client.reconnect();
    await vi.waitFor(() => {
      expect(rows()).toEqual([{ city: "Oslo", n: 2 }]);
    });
    expect(requests[1]).toMatchObject({ type: "subscribe", view: "by_city", where: "n > 0", after: "e:0=1" });
  });

  it("follows one view twice under two filters", async () => {
    const [all, some] = [client.follow("by_city"), client.follow("by_city", { where: "n > 5" })];
    await vi.waitFor(() => {
      expect([all.rows.position, some.rows.position]).toEqual(["e:0=1", "e:0=1"]);
    });
    expect(new Set(requests.map(({ id }) => id)).size).toBe(2);
    some.stop();
    await vi.waitFor(() => {
      expect(requests.at(-1)).toMatchObject({ type: "unsubscribe" });
    });
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
    expect((await client.query("SELECT 7")).rows).toEqual([[7]]);
    const system = await new Promise((resolve) => {
      client.watchSystem(resolve);
    });
    expect(system).toBeNull();
  });
});
