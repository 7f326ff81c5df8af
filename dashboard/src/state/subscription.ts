import type { Connection } from "../net/connection";
import { explain, type Message } from "../net/protocol";
import { Rows } from "./rows";
import type { Store } from "./store";

const RETRY_MS = 3_000;

export interface Watcher {
  onRows(): void;
  /** The filter that holds now, and the server's words about one that was refused. */
  onFilter(where: string, error: string | null): void;
  onLag(behind: number): void;
}

/** One view as this page follows it: its rows, its filter, and its place in the store. */
export class Subscription {
  readonly rows = new Rows();
  private where: string;
  /** A filter that was asked for and that the server has not yet answered. */
  private asked: string | null = null;
  private stored: string | null = null;
  private store: Store | null = null;
  private started = false;
  private stopped = false;

  constructor(
    readonly view: string,
    private readonly connection: Pick<Connection, "subscribe" | "unsubscribe">,
    private readonly opening: Promise<Store | null>,
    private readonly watcher: Watcher,
    private readonly slot: string,
  ) {
    this.where = localStorage.getItem(slot) ?? "";
  }

  /** Goes on from what an earlier page stored, or starts with a snapshot. */
  async start(): Promise<void> {
    this.store = await this.opening;
    const found = (await this.store?.load(this.view, this.where).catch(() => null)) ?? null;
    if (this.stopped) return;
    if (found !== null) {
      this.rows.replace(found.rows, found.position);
      this.watcher.onRows();
    }
    this.watcher.onFilter(this.where, null);
    this.started = true;
    this.ask();
  }

  stop(): void {
    this.stopped = true;
    this.connection.unsubscribe(this.view);
  }

  /** Changes the filter while connected; the old rows stay until the server's answer. */
  filter(where: string): void {
    this.asked = where.trim();
    if (this.started) this.ask();
  }

  receive(message: Message): void {
    // What comes before we asked was meant for a card of the same view before this one.
    if (!this.started) return;
    switch (message.type) {
      case "snapshot":
        this.accept();
        break;
      case "error":
        this.refuse(explain(message));
        return;
      case "lag":
        this.watcher.onLag(message.behind);
        return;
      default:
    }
    if (this.rows.apply(message)) this.watcher.onRows();
  }

  /** Writes rows and position away if they moved since the last time. */
  async save(): Promise<void> {
    const { position } = this.rows;
    if (this.store === null || this.asked !== null || position === null || position === this.stored) return;
    if (await this.store.save(this.view, this.where, this.rows)) this.stored = position;
  }

  private ask(): void {
    this.connection.subscribe(this.view, {
      view: this.view,
      where: this.asked ?? this.where,
      after: () => (this.asked === null ? this.rows.position : null),
    });
  }

  private accept(): void {
    if (this.asked === null) return;
    this.where = this.asked;
    this.asked = null;
    this.stored = null;
    if (this.where === "") localStorage.removeItem(this.slot);
    else localStorage.setItem(this.slot, this.where);
    this.watcher.onFilter(this.where, null);
  }

  private refuse(error: string): void {
    this.watcher.onFilter(this.where, error);
    const refused = this.asked ?? this.where;
    this.asked = null;
    if (refused !== "" && refused === this.where) this.filter("");
    else if (refused !== this.where) this.ask();
    else this.askLater();
  }

  /** A view without filter is refused only while it is not there yet. */
  private askLater(): void {
    setTimeout(() => {
      if (!this.stopped) this.ask();
    }, RETRY_MS);
  }
}
