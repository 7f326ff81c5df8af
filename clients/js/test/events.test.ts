import type { ServerResponse } from "node:http";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Client, RequestError, type Message } from "../src/index.js";
import { FakeServer } from "./fake-server.js";

let server: FakeServer;
let client: Client;

beforeEach(async () => {
  server = new FakeServer();
  server.key = "secret";
  client = new Client(await server.listen(), { credentials: () => "secret" });
});

afterEach(() => {
  server.close();
});

function write(response: ServerResponse, message: object): void {
  response.write(`event: x\nid: y\ndata: ${JSON.stringify(message)}\n\n`);
}

const change = (n: number): object => ({ type: "change", op: "upsert", key: [n], row: { n }, position: `e:0=${n}` });

async function take(messages: AsyncGenerator<Message, void>, count: number): Promise<Message[]> {
  const taken: Message[] = [];
  for await (const message of messages) if (taken.push(message) === count) break;
  return taken;
}

describe("server-sent events", () => {
  it("are read with the login in a header, and continue after the last position", async () => {
    server.answers.set("/v1/views/by_city/changes", (request, response) => {
      const after = new URL(request.url ?? "", "http://x").searchParams.get("after");
      response.writeHead(200, { "content-type": "text/event-stream" });
      response.write("retry: 1000\n\n: alive\n\n");
      write(response, change(after === null ? 1 : Number(after.split("=")[1]) + 1));
      response.end();
    });
    const messages = await take(client.events("by_city", { where: "n > 0" }), 3);
    expect(messages.map((message) => (message.type === "change" ? message.key : null))).toEqual([[1], [2], [3]]);
    expect(server.urls.map((url) => new URL(url.slice(4), "http://x").searchParams.get("after"))).toEqual([null, "e:0=1", "e:0=2"]);
    expect(server.urls.join()).not.toContain("secret");
  });

  it("do not continue from a snapshot of which pages are missing", async () => {
    server.answers.set("/v1/views/by_city/changes", (request, response) => {
      response.writeHead(200, { "content-type": "text/event-stream" });
      const last = server.urls.length === 2;
      write(response, { type: "snapshot", position: "e:0=9", page: 1, last, rows: [] });
      if (request.url?.includes("after") === true) write(response, change(10));
      response.end();
    });
    const messages = await take(client.events("by_city"), 3);
    expect(messages).toMatchObject([{ last: false }, { last: true }, { page: 1 }]);
    expect(server.urls[1]).not.toContain("after");
    expect(server.urls[2]).toContain("after=e%3A0%3D9");
  });

  it("of a named query carry its parameters, and continue only after a whole result", async () => {
    server.answers.set("/v1/queries/top/changes", (_request, response) => {
      response.writeHead(200, { "content-type": "text/event-stream" });
      write(response, { ...change(1), more: server.urls.length === 1 ? 1 : 0 });
      response.end();
    });
    await take(client.events({ query: "top", params: { n: 3, city: null } }), 3);
    expect(server.urls).toEqual(["?n=3&city=", "?n=3&city=", "?n=3&city=&after=e%3A0%3D1"].map((query) => `GET /v1/queries/top/changes${query}`));
  });

  it("end with the server's refusal", async () => {
    await expect(take(client.events("by_citi"), 1)).rejects.toThrow(RequestError);
  });

  it("end when they are told to", async () => {
    const ending = new AbortController();
    server.answers.set("/v1/views/by_city/changes", (_request, response) => {
      response.writeHead(200, { "content-type": "text/event-stream" });
      write(response, change(1));
    });
    const messages = client.events("by_city", { signal: ending.signal });
    expect((await messages.next()).done).toBe(false);
    ending.abort();
    expect((await messages.next()).done).toBe(true);
  });
});
