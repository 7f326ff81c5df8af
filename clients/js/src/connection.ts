import { backoff } from "./backoff.js";
import { parse } from "./json.js";
import { explain, type Message } from "./messages.js";

/** One subscription as the connection sees it. */
export interface Subscriber {
  readonly view: string;
  /** The filter to subscribe with; empty for all rows. */
  readonly where: string;
  /** The position to continue after; null for a snapshot. */
  readonly after: string | null;
  receive(message: Message): void;
}

export type ConnectionState =
  | { readonly kind: "connecting" }
  | { readonly kind: "live" }
  | { readonly kind: "waiting"; readonly until: number };

/** The part of a WebSocket that the client uses. */
export interface Socket {
  readonly readyState: number;
  send(data: string): void;
  close(): void;
  addEventListener(type: "message", listener: (event: { readonly data: unknown }) => void): void;
  addEventListener(type: "open" | "close" | "error", listener: () => void): void;
}

export interface ConnectionOptions {
  /** Opens the WebSocket. Node 20 has no global WebSocket: pass `(url) => new WebSocket(url)` with that of `ws`. */
  readonly openSocket?: (url: string) => Socket;
  readonly onState?: (state: ConnectionState) => void;
  /** Receives the server's errors that belong to no subscription. */
  readonly onProblem?: (reason: string) => void;
}

const PING_EVERY_MS = 10_000;
const SILENCE_MS = 25_000;
const OPEN = 1;

/**
 * One WebSocket with many subscriptions. It reconnects until `close` is called.
 * After a reconnect each subscription continues from its last position.
 */
export class Connection {
  private socket: Socket | null = null;
  private failures = 0;
  private lastMessageAt = 0;
  private retryTimer: ReturnType<typeof setTimeout> | undefined;
  private pingTimer: ReturnType<typeof setInterval> | undefined;
  private readonly subscribers = new Map<string, Subscriber>();

  constructor(
    private readonly url: string,
    private readonly options: ConnectionOptions = {},
  ) {}

  open(): void {
    clearTimeout(this.retryTimer);
    this.pingTimer ??= setInterval(() => {
      this.ping();
    }, PING_EVERY_MS);
    this.options.onState?.({ kind: "connecting" });
    const socket: Socket = this.options.openSocket?.(this.url) ?? new WebSocket(this.url);
    this.socket = socket;
    socket.addEventListener("open", () => {
      if (this.socket !== socket) return;
      this.failures = 0;
      this.lastMessageAt = Date.now();
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
    socket.addEventListener("close", () => {
      if (this.socket === socket) this.retry();
    });
  }

  /** Connects now instead of at the end of the backoff, for example when the network is back. */
  reconnect(): void {
    if (this.socket === null && this.pingTimer !== undefined) this.open();
  }

  close(): void {
    clearTimeout(this.retryTimer);
    clearInterval(this.pingTimer);
    this.pingTimer = undefined;
    const { socket } = this;
    this.socket = null;
    socket?.close();
  }

  /** Subscribes to a view. A second call with the same id changes the filter in place. */
  subscribe(id: string, subscriber: Subscriber): void {
    this.subscribers.set(id, subscriber);
    this.sendSubscribe(id, subscriber);
  }

  unsubscribe(id: string): void {
    if (this.subscribers.delete(id)) this.send({ type: "unsubscribe", id });
  }

  private dispatch(message: Message): void {
    if ("id" in message && typeof message.id === "string") this.subscribers.get(message.id)?.receive(message);
    else if (message.type === "error") this.options.onProblem?.(explain(message));
  }

  private sendSubscribe(id: string, { view, where, after }: Subscriber): void {
    this.send({ type: "subscribe", id, view, ...(where === "" ? {} : { where }), ...(after === null ? {} : { after }) });
  }

  private send(message: object): void {
    if (this.socket?.readyState === OPEN) this.socket.send(JSON.stringify(message));
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

  private retry(): void {
    this.socket = null;
    const wait = backoff(this.failures++);
    this.options.onState?.({ kind: "waiting", until: Date.now() + wait });
    clearTimeout(this.retryTimer);
    this.retryTimer = setTimeout(() => {
      this.open();
    }, wait);
  }
}
