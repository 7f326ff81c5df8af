import type { Connection, Subscriber } from "./connection.js";
import { explain, type Key, type Message, type Row } from "./messages.js";
import { Rows } from "./rows.js";

const RETRY_MS = 3_000;

/** Rows together with the position that they stand for. */
export interface StoredRows {
  readonly position: string;
  readonly rows: readonly { readonly key: Key; readonly row: Row }[];
}

/** Stores the rows of views, so that a later run continues from their position. */
export interface RowStore {
  /** The rows stored for the view under this filter, or null. */
  load(view: string, where: string): Promise<StoredRows | null>;
  /** Stores rows and position in one transaction; false if another writer owns the view. */
  save(view: string, where: string, rows: Rows): Promise<boolean>;
}

export interface SubscriptionOptions {
  /** A SQL condition; the default is all rows. */
  readonly where?: string;
  readonly store?: RowStore | null | Promise<RowStore | null>;
  /** The rows changed. */
  readonly onRows?: (rows: Rows) => void;
  /** The filter in effect, and the server's explanation if it refused another one. */
  readonly onFilter?: (where: string, error: string | null) => void;
  /** The number of changes that this client has still to receive. */
  readonly onLag?: (behind: number) => void;
}

/** One followed view: its rows and its filter. */
export class Subscription implements Subscriber {
  readonly rows = new Rows();
  private filterInEffect: string;
  /** A filter that was sent and that the server has not answered yet. */
  private pendingFilter: string | null = null;
  private savedPosition: string | null = null;
  private store: RowStore | null = null;
  private started = false;
  private stopped = false;

  constructor(
    private readonly id: string,
    readonly view: string,
    private readonly connection: Pick<Connection, "subscribe" | "unsubscribe">,
    private readonly options: SubscriptionOptions = {},
  ) {
    this.filterInEffect = options.where ?? "";
  }

  get where(): string {
    return this.pendingFilter ?? this.filterInEffect;
  }

  get after(): string | null {
    return this.pendingFilter === null ? this.rows.position : null;
  }

  /** Continues from the stored rows, or starts with a snapshot. */
  async start(): Promise<void> {
    this.store = (await this.options.store) ?? null;
    const stored = (await this.store?.load(this.view, this.filterInEffect).catch(() => null)) ?? null;
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
    this.pendingFilter = where.trim();
    if (this.started) this.subscribe();
  }

  receive(message: Message): void {
    switch (message.type) {
      case "snapshot":
        this.acceptFilter();
        break;
      case "error":
        this.refuseFilter(explain(message));
        return;
      case "lag":
        this.options.onLag?.(message.behind);
        return;
      default:
    }
    if (this.rows.apply(message)) this.options.onRows?.(this.rows);
  }

  /** Stores rows and position if they changed since the last call. */
  async save(): Promise<void> {
    const { position } = this.rows;
    if (this.store === null || this.pendingFilter !== null || position === null || position === this.savedPosition) return;
    if (await this.store.save(this.view, this.filterInEffect, this.rows)) this.savedPosition = position;
  }

  private subscribe(): void {
    this.connection.subscribe(this.id, this);
  }

  private acceptFilter(): void {
    if (this.pendingFilter === null) return;
    this.filterInEffect = this.pendingFilter;
    this.pendingFilter = null;
    this.savedPosition = null;
    this.options.onFilter?.(this.filterInEffect, null);
  }

  private refuseFilter(error: string): void {
    this.options.onFilter?.(this.filterInEffect, error);
    const refused = this.where;
    this.pendingFilter = null;
    if (refused !== "" && refused === this.filterInEffect) this.filter("");
    else if (refused !== this.filterInEffect) this.subscribe();
    else this.subscribeLater();
  }

  /** The server refuses a subscription without a filter only while the view does not exist yet. */
  private subscribeLater(): void {
    setTimeout(() => {
      if (!this.stopped) this.subscribe();
    }, RETRY_MS);
  }
}
