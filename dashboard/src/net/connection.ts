import { backoff } from "./backoff";
import { parse } from "./json";
import type { Message } from "./protocol";

/** A subscription as it is asked for; `after` is a function because it moves with every change. */
export interface Wanted {
  readonly view: string;
  readonly where: string;
  after(): string | null;
}

export type LinkState =
  | { readonly kind: "connecting" }
  | { readonly kind: "live" }
  | { readonly kind: "waiting"; readonly until: number };

const PING_EVERY_MS = 10_000;
const SILENCE_MS = 25_000;

/**
 * One WebSocket with many subscriptions, kept up for as long as the page lives.
 * After a break every subscription is asked for again from where it stood.
 */
export class Connection {
  private socket: WebSocket | null = null;
  private failures = 0;
  private heardAt = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly wanted = new Map<string, Wanted>();

  constructor(
    private readonly url: string,
    private readonly onMessage: (message: Message) => void,
    private readonly onState: (state: LinkState) => void,
  ) {
    setInterval(() => {
      this.beat();
    }, PING_EVERY_MS);
    // A laptop that wakes up, or a cable put back, need not wait for the backoff to end.
    addEventListener("online", () => {
      if (this.socket === null) this.open();
    });
  }

  open(): void {
    clearTimeout(this.timer);
    this.onState({ kind: "connecting" });
    const socket = new WebSocket(this.url);
    this.socket = socket;
    socket.addEventListener("open", () => {
      this.failures = 0;
      this.heardAt = Date.now();
      this.onState({ kind: "live" });
      for (const id of this.wanted.keys()) this.ask(id);
    });
    socket.addEventListener("message", (event: MessageEvent<string>) => {
      this.heardAt = Date.now();
      this.onMessage(parse(event.data) as Message);
    });
    socket.addEventListener("close", () => {
      if (this.socket === socket) this.retry();
    });
  }

  /** Asks for a view; an id already in use changes its filter while connected. */
  subscribe(id: string, wanted: Wanted): void {
    this.wanted.set(id, wanted);
    this.ask(id);
  }

  unsubscribe(id: string): void {
    if (this.wanted.delete(id)) this.send({ type: "unsubscribe", id });
  }

  private ask(id: string): void {
    const wanted = this.wanted.get(id);
    if (wanted === undefined) return;
    const after = wanted.after();
    this.send({
      type: "subscribe",
      id,
      view: wanted.view,
      ...(wanted.where === "" ? {} : { where: wanted.where }),
      ...(after === null ? {} : { after }),
    });
  }

  private send(message: object): void {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  private beat(): void {
    if (this.socket?.readyState !== WebSocket.OPEN) return;
    // A dead peer behind a sleeping network never closes: silence has to count as a break.
    if (Date.now() - this.heardAt > SILENCE_MS) {
      this.socket.close();
      this.retry();
    } else {
      this.send({ type: "ping" });
    }
  }

  private retry(): void {
    this.socket = null;
    const wait = backoff(this.failures++);
    this.onState({ kind: "waiting", until: Date.now() + wait });
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.open();
    }, wait);
  }
}
