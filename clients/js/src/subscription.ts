import type { Connection, Subscriber } from "./connection.js";
import { explain, type KeyedRow, type Lag, type Message, type Problem } from "./messages.js";
import { Rows } from "./rows.js";

const RETRY_MS = 3_000;

/** What is followed: a view, a named query of the pipeline, or a SELECT over the views. */
export type Source = { readonly view: string } | NamedQuery | { readonly sql: string };

/** A named query of the pipeline, with values for its parameters. */
export interface NamedQuery {
  readonly query: string;
  readonly params?: Readonly<Record<string, string | number | boolean | null>>;
}

/** What can be changed while a subscription runs. */
export interface Selection {
  /** A SQL condition; empty for all rows. */
  readonly where?: string;
  /** The columns; the default is all of them. */
  readonly select?: readonly string[];
  /** What the server does when this client reads too slowly. */
  readonly when_slow?: "buffer" | "conflate" | "sample" | "disconnect";
  /** Changes per second, with `when_slow: "sample"`. */
  readonly sample?: number;
  /** The most changes per second. */
  readonly max_rate?: number;
  /** The most changes per second of one key; only the newest one is sent. */
  readonly max_rate_per_key?: number;
}

/** The members to change; null stands for the default. */
export type SelectionChange = { readonly [Name in keyof Selection]?: Selection[Name] | null };

/** Rows together with the position that they stand for. */
export interface StoredRows {
  readonly position: string;
  readonly rows: readonly KeyedRow[];
}

/** Stores the rows of views, so that a later run continues from their position. */
export interface RowStore {
  /** The rows stored for the view under this filter, or null. */
  load(view: string, where: string): Promise<StoredRows | null>;
  /** Stores rows and position in one transaction; false if another writer owns the view. */
  save(view: string, where: string, rows: Rows): Promise<boolean>;
}

export interface SubscriptionOptions extends Selection {
  /** The most rows in a snapshot. */
  readonly limit?: number;
  /** Keeps the rows of a view; the rows of a query are not kept. */
  readonly store?: RowStore | null | Promise<RowStore | null>;
  /** The rows changed, or more of a snapshot arrived (`rows.loading`). */
  readonly onRows?: (rows: Rows) => void;
  /** The filter in effect, and the server's explanation if it refused the subscription or another filter. */
  readonly onFilter?: (where: string, error: string | null) => void;
  /** This client is behind. */
  readonly onLag?: (lag: Lag) => void;
  /** The server left out this many changes, because of `when_slow` or `max_rate`. */
  readonly onSkipped?: (count: number) => void;
}

/** One followed view or query: its rows and its filter. */
export class Subscription implements Subscriber {
  readonly rows = new Rows();
  /** The number of changes that the server has left out so far. */
  skipped = 0;
  private inEffect: Selection;
  /** A selection that was sent and that the server has not answered yet. */
  private pending: Selection | null = null;
  /** The number of `update` messages that the server has not answered yet. */
  private updates = 0;
  private savedPosition: string | null = null;
  private store: RowStore | null = null;
  private started = false;
  private stopped = false;
  private paused = false;

  constructor(
    private readonly id: string,
    private readonly source: Source,
    private readonly connection: Pick<Connection, "subscribe" | "unsubscribe" | "tell">,
    private readonly options: SubscriptionOptions = {},
  ) {
    const { where = "", select, when_slow, sample, max_rate, max_rate_per_key } = options;
    this.inEffect = defined({ where, select, when_slow, sample, max_rate, max_rate_per_key });
  }

  /** The requested filter; empty for all rows. */
  get where(): string {
    return (this.pending ?? this.inEffect).where ?? "";
  }

  get active(): boolean {
    return !this.paused;
  }

  /** The members of `subscribe`. Pages of a snapshot that has not ended are requested again. */
  request(): object {
    this.rows.stopLoading();
    this.updates = 0;
    const { where, ...rest } = this.pending ?? this.inEffect;
    const after = this.pending === null ? this.rows.position : null;
    return defined({ ...this.source, where: where === "" ? undefined : where, ...rest, limit: this.options.limit, after: after ?? undefined });
  }

  /** Continues from the stored rows, or starts with a snapshot. */
  async start(): Promise<void> {
    this.store = "view" in this.source ? ((await this.options.store) ?? null) : null;
    const stored = (await this.store?.load(this.name, this.filterInEffect).catch(() => null)) ?? null;
    if (this.stopped) return;
    if (stored !== null) {
      this.rows.replace(stored.rows, stored.position);
      this.options.onRows?.(this.rows);
    }
    this.options.onFilter?.(this.filterInEffect, null);
    this.started = true;
    this.subscribe();
  }

  stop(): void {
    this.stopped = true;
    this.connection.unsubscribe(this.id);
  }

  /** Changes the filter. The old rows stay until the server answers. */
  filter(where: string): void {
    this.pending = { ...(this.pending ?? this.inEffect), where: where.trim() };
    if (this.started) this.subscribe();
  }

  /**
   * Changes the filter, the columns or the pace while connected. The server sends only the rows that differ where it
   * can; `onFilter` is called when all of them have come, or with the server's explanation if it refuses.
   */
  update(changes: SelectionChange): void {
    const wanted = { ...(this.pending ?? this.inEffect), ...changes };
    this.pending = Object.fromEntries(Object.entries(wanted).filter(([, value]) => value !== null));
    // Without a connection, the next `subscribe` has the changes.
    if (this.connection.tell(this.id, "update", changes)) this.updates++;
  }

  /** The server sends nothing until `resume`; then the changes since come, or a snapshot. */
  pause(): void {
    if (this.paused) return;
    this.paused = true;
    this.connection.tell(this.id, "pause");
  }

  resume(): void {
    if (!this.paused) return;
    this.paused = false;
    // After a reconnect the server does not know the paused subscription.
    if (!this.connection.tell(this.id, "resume") && this.started) this.subscribe();
  }

  receive(message: Message): void {
    this.countSkipped(message);
    switch (message.type) {
      case "snapshot":
        // The answer to `update` is a message of its own.
        if ((message.last ?? true) && this.updates === 0) this.accept();
        break;
      case "updated":
        // Without a position it answers `pause` or `resume`.
        if (message.position !== undefined && this.updates > 0 && --this.updates === 0) this.accept();
        return;
      case "error":
        this.refuse(message);
        return;
      case "lag":
        this.options.onLag?.(message);
        break;
      default:
    }
    if (this.rows.apply(message)) this.options.onRows?.(this.rows);
  }

  /** Stores rows and position if they changed since the last call. */
  async save(): Promise<void> {
    const { position } = this.rows;
    if (this.store === null || this.pending !== null || position === null || position === this.savedPosition) return;
    if (await this.store.save(this.name, this.filterInEffect, this.rows)) this.savedPosition = position;
  }

  private get name(): string {
    return "view" in this.source ? this.source.view : "";
  }

  private get filterInEffect(): string {
    return this.inEffect.where ?? "";
  }

  private subscribe(): void {
    this.connection.subscribe(this.id, this);
  }

  private countSkipped(message: Message): void {
    const skipped = "skipped" in message ? (message.skipped ?? 0) : 0;
    if (skipped === 0) return;
    this.skipped += skipped;
    this.options.onSkipped?.(skipped);
  }

  private accept(): void {
    if (this.pending === null) return;
    this.inEffect = this.pending;
    this.pending = null;
    this.savedPosition = null;
    this.options.onFilter?.(this.filterInEffect, null);
  }

  private refuse(problem: Problem): void {
    this.options.onFilter?.(this.filterInEffect, explain(problem));
    const refused = this.where;
    this.pending = null;
    if (this.updates > 0) {
      // The subscription goes on as it was.
      this.updates--;
      return;
    }
    if (refused !== "" && refused === this.filterInEffect) this.filter("");
    else if (refused !== this.filterInEffect) this.subscribe();
    else if ("view" in this.source && problem.title !== "Forbidden") this.subscribeLater();
  }

  /** The server refuses a permitted subscription without a filter only while the view does not exist yet. */
  private subscribeLater(): void {
    setTimeout(() => {
      if (!this.stopped) this.subscribe();
    }, RETRY_MS);
  }
}

/** The object without its members that are undefined. */
function defined<T extends object>(members: T): { [Name in keyof T]: Exclude<T[Name], undefined> } {
  return Object.fromEntries(Object.entries(members).filter(([, value]) => value !== undefined)) as {
    [Name in keyof T]: Exclude<T[Name], undefined>;
  };
}
