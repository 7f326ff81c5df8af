import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { WebSocketServer, type WebSocket } from "ws";

export type Request = Record<string, unknown>;
type Answer = (request: IncomingMessage, response: ServerResponse) => void;

/** A server whose answers the tests write. With `key`, it wants a login: a header for HTTP, a ticket for a WebSocket. */
export class FakeServer {
  /** The messages that clients sent, on any WebSocket. */
  readonly messages: Request[] = [];
  /** Method and URL of each request, WebSockets included. */
  readonly urls: string[] = [];
  readonly answers = new Map<string, Answer>();
  key: string | null = null;
  onMessage: (socket: WebSocket, message: Request) => void = answerWithOneRow;
  private tickets = 0;
  private readonly valid = new Set<string>();
  private readonly http: Server;
  private readonly websockets: WebSocketServer;

  constructor() {
    this.http = createServer((request, response) => {
      this.urls.push(`${request.method ?? ""} ${request.url ?? ""}`);
      this.answer(request, response);
    });
    this.websockets = new WebSocketServer({
      server: this.http,
      path: "/v1/connect",
      verifyClient: ({ req }: { req: IncomingMessage }) => this.admits(req),
    });
    this.websockets.on("connection", (socket) => {
      socket.on("message", (data: Buffer) => {
        const message = JSON.parse(data.toString()) as Request;
        this.messages.push(message);
        this.onMessage(socket, message);
      });
    });
  }

  async listen(): Promise<string> {
    await new Promise<void>((resolve) => this.http.listen(0, "127.0.0.1", resolve));
    return `http://127.0.0.1:${(this.http.address() as AddressInfo).port}`;
  }

  get sockets(): Set<WebSocket> {
    return this.websockets.clients;
  }

  close(): void {
    for (const socket of this.sockets) socket.terminate();
    this.websockets.close();
    this.http.closeAllConnections();
    this.http.close();
  }

  private answer(request: IncomingMessage, response: ServerResponse): void {
    const path = (request.url ?? "").split("?")[0] ?? "";
    if (this.key !== null && request.headers.authorization !== `Bearer ${this.key}`) {
      send(response, 401, { title: "Unauthorized", detail: "the API key is not known" });
    } else if (path === "/v1/tickets" && this.key !== null) {
      const ticket = `ticket-${++this.tickets}`;
      this.valid.add(ticket);
      send(response, 200, { ticket, expires: "2026-11-18T15:00:30Z" });
    } else {
      const answer = this.answers.get(path);
      if (answer === undefined) send(response, 404, { title: "Not Found" });
      else answer(request, response);
    }
  }

  private admits(request: IncomingMessage): boolean {
    this.urls.push(`WS ${request.url ?? ""}`);
    if (this.key === null) return true;
    return this.valid.delete(new URL(request.url ?? "", "http://x").searchParams.get("ticket") ?? "");
  }
}

export function send(response: ServerResponse, status: number, body: object): void {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
}

/** Answers a new subscription with one row, and a continued one with one change. */
function answerWithOneRow(socket: WebSocket, { type, id, after }: Request): void {
  if (type !== "subscribe") return;
  const message =
    after === undefined
      ? { type: "snapshot", position: "e:0=1", rows: [{ key: ["Oslo"], row: { city: "Oslo", n: 1 } }] }
      : { type: "change", op: "upsert", key: ["Oslo"], row: { city: "Oslo", n: 2 }, position: "e:0=2" };
  socket.send(JSON.stringify({ id, ...message }));
}
