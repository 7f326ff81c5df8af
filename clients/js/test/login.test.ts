import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { WebSocket } from "ws";
import { Client, type ConnectionState } from "../src/index.js";
import { Connection } from "../src/connection.js";
import { FakeServer } from "./fake-server.js";

let server: FakeServer;
let client: Client;
let key: string;
let asked: number;
let states: ConnectionState[];
let unauthorized: string[];

beforeEach(async () => {
  [key, asked, states, unauthorized] = ["secret-1", 0, [], []];
  server = new FakeServer();
  server.key = "secret-1";
  client = new Client(await server.listen(), {
    openSocket: (url) => new WebSocket(url),
    credentials: () => {
      asked++;
      return Promise.resolve(key);
    },
    onUnauthorized: (reason) => unauthorized.push(reason),
    onState: (state) => states.push(state),
  });
});

afterEach(() => {
  client.close();
  server.close();
  vi.useRealTimers();
});

const kinds = (): string[] => states.map(({ kind }) => kind);
const connected = (times: number): Promise<void> =>
  vi.waitFor(() => {
    expect(kinds().filter((kind) => kind === "live")).toHaveLength(times);
  });
const connects = (): string[] => server.urls.filter((url) => url.startsWith("WS"));

/** Closes the WebSockets as a server does, after they have lasted. */
function close(code: number, reason = ""): void {
  vi.setSystemTime(Date.now() + 60_000);
  for (const socket of server.sockets) socket.close(code, reason);
}

describe("a client with a login", () => {
  it("connects each time with a new ticket, and the key is in no URL", async () => {
    const view = client.follow("by_city");
    await connected(1);
    await vi.waitFor(() => {
      expect(view.rows.position).toBe("e:0=1");
    });
    for (const socket of server.sockets) socket.terminate();
    await connected(2);
    expect(connects()).toEqual(["WS /v1/connect?ticket=ticket-1", "WS /v1/connect?ticket=ticket-2"]);
    expect(server.urls.join()).not.toContain(key);
  });

  it("reports a refused key and does not ask again until it is told to", async () => {
    key = "wrong";
    client.open();
    await vi.waitFor(() => {
      expect(states.at(-1)).toEqual({ kind: "refused", code: 401, reason: "the API key is not known" });
    });
    expect(unauthorized).toEqual(["the API key is not known"]);
    key = "secret-1";
    client.reconnect();
    await connected(1);
    expect(server.urls.filter((url) => url === "POST /v1/tickets")).toHaveLength(2);
  });

  it("reports a refused key of a query too", async () => {
    key = "wrong";
    await expect(client.query("SELECT 1")).rejects.toThrow("the API key is not known");
    expect(unauthorized).toHaveLength(1);
  });

  it("sends no key that a header cannot carry", async () => {
    key = "sécret\n2";
    await expect(client.query("SELECT 1")).rejects.toThrow("copy it again");
    expect(server.urls).toEqual([]);
    expect(unauthorized).toHaveLength(1);
  });

  it("stops asking for the system when the key is refused", async () => {
    key = "wrong";
    const statuses: (number | undefined)[] = [];
    client.watchSystem((_system, refusal) => statuses.push(refusal?.status));
    await vi.waitFor(() => {
      expect(statuses).toEqual([401]);
    });
  });

  it("answers the server's request for a fresh token on the same connection", async () => {
    client.open();
    await connected(1);
    const before = asked;
    const ask = (): void => {
      for (const socket of server.sockets) socket.send(JSON.stringify({ type: "authenticate", expires: "2026-11-18T15:00:00Z" }));
    };
    key = "token-2";
    ask();
    await vi.waitFor(() => {
      expect(server.messages).toEqual([{ type: "authenticate", token: "token-2" }]);
    });
    ask(); // without an answer, because there is no fresher token
    await vi.waitFor(() => {
      expect(asked).toBe(before + 2);
    });
    key = "token-3";
    ask();
    await vi.waitFor(() => {
      expect(server.messages.map(({ token }) => token)).toEqual(["token-2", "token-3"]);
    });
    expect(connects()).toHaveLength(1);
  });

  it("connects at once with fresh credentials when its login has expired", async () => {
    client.open();
    await connected(1);
    const before = asked;
    server.key = key = "secret-2";
    close(4001, "the token has expired");
    await connected(2);
    expect(asked).toBeGreaterThan(before);
    expect(states.filter((state) => state.kind === "waiting").map(({ until }) => until - Date.now())).toSatisfy(
      (waits: number[]) => waits.every((wait) => wait <= 0),
    );
  });

  it("does not come back after its key was revoked, and says why", async () => {
    client.open();
    await connected(1);
    close(4503, "the key was revoked");
    await vi.waitFor(() => {
      expect(states.at(-1)).toEqual({ kind: "refused", code: 4503, reason: "the key was revoked" });
    });
    expect(unauthorized).toEqual(["the key was revoked"]);
  });

  it("does not come back after an administrator closed its connection, but keeps its login", async () => {
    client.open();
    await connected(1);
    close(4500, "closed by an administrator");
    await vi.waitFor(() => {
      expect(states.at(-1)).toMatchObject({ kind: "refused", code: 4500 });
    });
    expect(unauthorized).toEqual([]);
  });

  it("connects without a ticket to a server that has no login", async () => {
    server.key = null;
    client.open();
    await connected(1);
    expect(connects()).toEqual(["WS /v1/connect"]);
  });

  it("does not connect after it was closed while it waited for a ticket", async () => {
    const ticket = Promise.resolve("late");
    const opened: string[] = [];
    const connection = new Connection("ws://127.0.0.1:1", { ticket: () => ticket }, {
      credentials: () => key,
      openSocket: (url) => {
        opened.push(url);
        return new WebSocket(url);
      },
    });
    connection.open();
    connection.close();
    await ticket;
    await Promise.resolve();
    expect(opened).toEqual([]);
  });
});
