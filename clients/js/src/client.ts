import { Connection, type ConnectionOptions } from "./connection.js";
import { query, watchSystem } from "./http.js";
import type { QueryResult } from "./messages.js";
import { Subscription, type SubscriptionOptions } from "./subscription.js";
import type { System } from "./system.js";

/** A client of one server: it follows views over one WebSocket and sends queries over HTTP. */
export class Client {
  private readonly base: URL;
  private readonly connection: Connection;
  private opened = false;
  private subscriptions = 0;
  private stopWatching: (() => void)[] = [];

  /** `url` is the server's address, for example http://127.0.0.1:8500. A path must end with a slash. */
  constructor(url: string | URL, options: ConnectionOptions = {}) {
    this.base = new URL(url);
    const socketUrl = new URL("v1/connect", this.base);
    socketUrl.protocol = socketUrl.protocol === "https:" ? "wss:" : "ws:";
    this.connection = new Connection(socketUrl.href, options);
  }

  /** Opens the WebSocket; `follow` does so too. */
  open(): void {
    if (this.opened) return;
    this.opened = true;
    this.connection.open();
  }

  /** Follows a view until `stop` is called on the result. */
  follow(view: string, options: SubscriptionOptions = {}): Subscription {
    this.open();
    const subscription = new Subscription(`${view}-${++this.subscriptions}`, view, this.connection, options);
    void subscription.start();
    return subscription;
  }

  /** The rows of one read-only SQL query; throws an Error with the server's explanation. */
  query(sql: string, signal: AbortSignal | null = null): Promise<QueryResult> {
    return query(this.base, sql, signal);
  }

  /** Calls back each second with the system's description, or with `null` if the server does not answer. */
  watchSystem(onSystem: (system: System | null) => void): void {
    this.stopWatching.push(watchSystem(this.base, onSystem));
  }

  /** Connects now instead of at the end of the backoff, for example when the network is back. */
  reconnect(): void {
    this.connection.reconnect();
  }

  close(): void {
    this.opened = false;
    this.connection.close();
    for (const stop of this.stopWatching.splice(0)) stop();
  }
}
