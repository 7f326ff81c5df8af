import { backoff } from "./backoff.js";
import { reactionTo, REVOKED } from "./close-codes.js";
import type { Http } from "./http.js";
import { parse } from "./json.js";
import { RequestError, type LoginOptions } from "./login.js";
import { explain, type Message } from "./messages.js";

/** One subscription as the connection sees it. */
export interface Subscriber {
  /** The members of `subscribe` for the rows and position that the subscription has now. */
  request(): object;
  /** False while it is paused: it is not subscribed again then. */
  readonly active: boolean;
  receive(message: Message): void;
}

export type ConnectionState =
  | { readonly kind: "connecting" }
  | { readonly kind: "live" }
  | { readonly kind: "waiting"; readonly until: number }
  /** The server does not want this client back. `code` is the close code, or the HTTP status of a refused login. */
  | { readonly kind: "refused"; readonly code: number; readonly reason: string };

/** The part of a WebSocket that the client uses. */
export interface Socket {
  readonly readyState: number;
  send(data: string): void;
  close(): void;
  addEventListener(type: "message", listener: (event: { readonly data: unknown }) => void): void;
  addEventListener(type: "close", listener: (event: { readonly code: number; readonly reason: string }) => void): void;
  addEventListener(type: "open" | "error", listener: () => void): void;
}

export interface ConnectionOptions extends LoginOptions {
  /** Opens the WebSocket. Node 20 has no global WebSocket: pass `(url) => new WebSocket(url)` with that of `ws`. */
  readonly openSocket?: (url: string) => Socket;
  readonly onState?: (state: ConnectionState) => void;
  /** Receives the server's errors that belong to no subscription. */
  readonly onProblem?: (reason: string) => void;
}

const PING_EVERY_MS = 10_000;
const SILENCE_MS = 25_000;
/** A connection that ended sooner does not count as a success: a server that closes each one would be asked in a loop. */
const LASTING_MS = 2_000;
const OPEN = 1;

/**
 * One WebSocket with many subscriptions. It reconnects until `close` is called or the server refuses it for good.
 * After a reconnect each subscription continues from its last position.
 */
export class Connection {
  private socket: Socket | null = null;
  private failures = 0;
  private attempts = 0;
  /** The token with which this WebSocket answered the server's last request for a fresh one. */
  private sentToken = "";
  private openedAt = 0;
  private lastMessageAt = 0;
  private retryTimer: ReturnType<typeof setTimeout> | undefined;
  private pingTimer: ReturnType<typeof setInterval> | undefined;
  private readonly subscribers = new Map<string, Subscriber>();
  /** The ids that the server knows on this WebSocket. */
  private readonly subscribed = new Set<string>();

  constructor(
    private readonly url: string,
    private readonly http: Pick<Http, "ticket">,
    private readonly options: ConnectionOptions = {},
  ) {}

  /** Connects; with a login, each WebSocket gets a ticket of its own first, because a ticket is valid once. */
  open(): void {
    clearTimeout(this.retryTimer);
    this.pingTimer ??= setInterval(() => {
      this.ping();
    }, PING_EVERY_MS);
    this.options.onState?.({ kind: "connecting" });
    if (this.options.credentials === undefined) this.connect(this.url);
    else void this.connectWithTicket(++this.attempts);
  }

  /** Connects now instead of at the end of the backoff, for example when the network is back or after a new login. */
  reconnect(): void {
    if (this.socket === null && this.pingTimer !== undefined) this.open();
  }

  close(): void {
    this.attempts++;
    clearTimeout(this.retryTimer);
    clearInterval(this.pingTimer);
    this.pingTimer = undefined;
    const { socket } = this;
    this.socket = null;
    socket?.close();
  }

  /** Subscribes. A second call with the same id replaces the subscription. */
  subscribe(id: string, subscriber: Subscriber): void {
    this.subscribers.set(id, subscriber);
    this.sendSubscribe(id, subscriber);
  }

  unsubscribe(id: string): void {
    if (this.subscribers.delete(id)) this.tell(id, "unsubscribe");
    this.subscribed.delete(id);
  }

  /** Sends a message about a subscription; false if the server does not know it on this connection. */
  tell(id: string, type: string, members: object = {}): boolean {
    return this.subscribed.has(id) && this.send({ type, id, ...members });
  }

  private async connectWithTicket(attempt: number): Promise<void> {
    let ticket: string | null;
    try {
      ticket = await this.http.ticket();
    } catch (error) {
      if (attempt !== this.attempts) return;
      const refused = error instanceof RequestError && [401, 403].includes(error.status);
      if (refused) this.refuse(error.status, error.message);
      else this.retry();
      return;
    }
    if (attempt === this.attempts) this.connect(ticket === null ? this.url : `${this.url}?ticket=${encodeURIComponent(ticket)}`);
  }

  private connect(url: string): void {
    const socket: Socket = this.options.openSocket?.(url) ?? new WebSocket(url);
    this.socket = socket;
    socket.addEventListener("open", () => {
      if (this.socket !== socket) return;
      this.openedAt = this.lastMessageAt = Date.now();
      this.subscribed.clear();
      this.options.onState?.({ kind: "live" });
      for (const [id, subscriber] of this.subscribers) this.sendSubscribe(id, subscriber);
    });
    socket.addEventListener("message", ({ data }) => {
      if (this.socket !== socket) return;
      this.lastMessageAt = Date.now();
      this.dispatch(parse(String(data)) as Message);
    });
    // In Node an error without a listener ends the process; `close` follows each error.
    socket.addEventListener("error", () => undefined);
    socket.addEventListener("close", ({ code, reason }) => {
      if (this.socket === socket) this.closed(code, reason);
    });
  }

  private closed(code: number, reason: string): void {
    const reaction = reactionTo(code);
    if (reaction === "never") {
      this.refuse(code, reason);
      if (code === REVOKED) this.options.onUnauthorized?.(reason);
    } else this.retry(reaction === "at once");
  }

  private dispatch(message: Message): void {
    if (message.type === "authenticate") void this.authenticate();
    else if ("id" in message && typeof message.id === "string") this.subscribers.get(message.id)?.receive(message);
    else if (message.type === "error") this.options.onProblem?.(explain(message));
  }

  /** Answers the server's request for a fresh token, so that the connection outlives the old one. */
  private async authenticate(): Promise<void> {
    const { socket } = this;
    try {
      const token = (await this.options.credentials?.()) ?? "";
      // The same token again would not outlive the old one, and the server would ask again.
      if (token === "" || token === this.sentToken || this.socket !== socket) return;
      this.sentToken = token;
      this.send({ type: "authenticate", token });
    } catch (error) {
      this.options.onProblem?.(`no fresh login: ${error instanceof Error ? error.message : String(error)}`);
    }
  }

  private sendSubscribe(id: string, subscriber: Subscriber): void {
    if (subscriber.active && this.send({ type: "subscribe", id, ...subscriber.request() })) this.subscribed.add(id);
  }

  private send(message: object): boolean {
    if (this.socket?.readyState !== OPEN) return false;
    this.socket.send(JSON.stringify(message));
    return true;
  }

  private ping(): void {
    if (this.socket?.readyState !== OPEN) return;
    // A peer that vanished behind a sleeping network never closes the socket: silence counts as a break.
    if (Date.now() - this.lastMessageAt > SILENCE_MS) {
      this.socket.close();
      this.retry();
    } else {
      this.send({ type: "ping" });
    }
  }

  private refuse(code: number, reason: string): void {
    this.dropSocket();
    this.options.onState?.({ kind: "refused", code, reason });
  }

  private retry(atOnce = false): void {
    const lasted = this.openedAt !== 0 && Date.now() - this.openedAt >= LASTING_MS;
    this.dropSocket();
    if (lasted) this.failures = 0;
    const wait = atOnce && lasted ? 0 : backoff(this.failures++);
    this.options.onState?.({ kind: "waiting", until: Date.now() + wait });
    clearTimeout(this.retryTimer);
    this.retryTimer = setTimeout(() => {
      this.open();
    }, wait);
  }

  private dropSocket(): void {
    this.socket = null;
    this.openedAt = 0;
    this.sentToken = "";
    this.subscribed.clear();
  }
}
