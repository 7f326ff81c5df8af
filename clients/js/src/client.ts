import { Connection, type ConnectionOptions } from "./connection.js";
import { events, type EventsOptions } from "./events.js";
import { Http, TIMEOUT_MS, watch, type Watcher } from "./http.js";
import type { Message, QueryResult } from "./messages.js";
import type { OpenConnection } from "./open-connections.js";
import { Subscription, type NamedQuery, type Source, type SubscriptionOptions } from "./subscription.js";
import type { System, ViewDescription } from "./system.js";

/** A client of one server: it follows views over one WebSocket and sends queries over HTTP. */
export class Client {
  private readonly http: Http;
  private readonly connection: Connection;
  private opened = false;
  private subscriptions = 0;
  private readonly stopWatching = new Set<() => void>();

  /** `url` is the server's address, for example http://127.0.0.1:8500. A path must end with a slash. */
  constructor(url: string | URL, options: ConnectionOptions = {}) {
    this.http = new Http(new URL(url), options);
    const socketUrl = new URL("v1/connect", url);
    socketUrl.protocol = socketUrl.protocol === "https:" ? "wss:" : "ws:";
    this.connection = new Connection(socketUrl.href, this.http, options);
  }

  /** Opens the WebSocket; `follow` does so too. */
  open(): void {
    if (this.opened) return;
    this.opened = true;
    this.connection.open();
  }

  /** Follows a view, given by its name, or a query, until `stop` is called on the result. */
  follow(source: string | Source, options: SubscriptionOptions = {}): Subscription {
    this.open();
    const followed = typeof source === "string" ? { view: source } : source;
    const name = "view" in followed ? followed.view : "query" in followed ? followed.query : "sql";
    const subscription = new Subscription(`${name}-${++this.subscriptions}`, followed, this.connection, options);
    void subscription.start();
    return subscription;
  }

  /** The messages of a view or named query as server-sent events; they work where WebSockets do not. */
  events(source: string | NamedQuery, options: EventsOptions = {}): AsyncGenerator<Message, void> {
    if (typeof source === "string") return events(this.http, `v1/views/${encodeURIComponent(source)}/changes`, options);
    return events(this.http, `v1/queries/${encodeURIComponent(source.query)}/changes`, options, source.params);
  }

  /** The rows of one read-only SQL query; throws a RequestError with the server's explanation. */
  async query(sql: string, signal: AbortSignal | null = null): Promise<QueryResult> {
    return (await this.http.post("v1/query", { sql }, signal)) as QueryResult;
  }

  /** Calls back each second with the system's description. Needs the right `admin`. Returns a function that stops it. */
  watchSystem(onSystem: Watcher<System>): () => void {
    return this.watch("v1/system", onSystem);
  }

  /** The views that the caller may read; throws a RequestError, with status 401 if the server wants another login. */
  async views(): Promise<readonly ViewDescription[]> {
    const answer = await this.http.json("v1/views", { signal: AbortSignal.timeout(TIMEOUT_MS) });
    return (answer as { views: readonly ViewDescription[] }).views;
  }

  /** Calls back each second with the views that the caller may read. Returns a function that stops it. */
  watchViews(onViews: Watcher<readonly ViewDescription[]>): () => void {
    return this.watch<{ views: readonly ViewDescription[] }>("v1/views", (answer, refusal) => {
      onViews(answer?.views ?? null, refusal);
    });
  }

  /** Calls back each second with the connections of this server's clients. Needs the right `admin`. */
  watchConnections(onConnections: Watcher<readonly OpenConnection[]>): () => void {
    return this.watch<{ connections: readonly OpenConnection[] }>("v1/connections", (answer, refusal) => {
      onConnections(answer?.connections ?? null, refusal);
    });
  }

  /** Closes a client's connection to this server. The client is told that it need not connect again. */
  async closeConnection(id: string): Promise<void> {
    await this.http.send(`v1/connections/${encodeURIComponent(id)}`, { method: "DELETE" });
  }

  /** Connects now instead of at the end of the backoff, for example when the network is back or after a new login. */
  reconnect(): void {
    this.connection.reconnect();
  }

  close(): void {
    this.opened = false;
    this.connection.close();
    for (const stop of this.stopWatching) stop();
    this.stopWatching.clear();
  }

  private watch<T>(path: string, onAnswer: Watcher<T>): () => void {
    const stop = watch(this.http, path, onAnswer);
    this.stopWatching.add(stop);
    return () => {
      stop();
      this.stopWatching.delete(stop);
    };
  }
}
