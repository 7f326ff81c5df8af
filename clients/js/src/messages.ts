/** The messages of a subscription, and the result of a query. */

/** A JSON value of a row. Integers that a double cannot hold are decimal text. */
export type Value = string | number | boolean | null | Value[] | { [name: string]: Value };
export type Row = Readonly<Record<string, Value>>;
/** The values of the view's key columns; null if the view has no key. */
export type Key = readonly Value[] | null;

export interface Column {
  readonly name: string;
  readonly type: string;
}

/** A row with its key, and its place from 1 on if it is of a query that sorts its rows. */
export interface KeyedRow {
  readonly key: Key;
  readonly row: Row;
  readonly rank?: number;
}

/** What every message of a subscription may carry. */
interface OfSubscription {
  readonly id: string;
  /** The number of changes that were left out before this message, by `when_slow` or `max_rate`. */
  readonly skipped?: number;
}

/** One page of all rows up to `position`. The rows are complete with the last page; an old server sends a single one. */
export interface Snapshot extends OfSubscription {
  readonly type: "snapshot";
  readonly position: string;
  readonly rows: readonly KeyedRow[];
  /** Counts from 1. Every page of a snapshot has the same position. */
  readonly page?: number;
  readonly last?: boolean;
  readonly total?: number;
  readonly truncated?: boolean;
}

export interface Change extends OfSubscription {
  readonly type: "change";
  readonly op: "upsert" | "delete";
  readonly key: Key;
  readonly row: Row | null;
  readonly rank?: number;
  /** Of a query: the number of changes that follow until the rows are those of one result. */
  readonly more?: number;
  readonly position: string;
}

/** The server cannot continue from the requested position; a snapshot follows. */
export interface Gap extends OfSubscription {
  readonly type: "gap";
  readonly position: string;
  readonly reason: string;
}

/** How far this client is behind. */
export interface Lag extends OfSubscription {
  readonly type: "lag";
  readonly position: string;
  /** The number of changes that this client has still to receive. */
  readonly behind: number;
  /** The age of the oldest of them. */
  readonly seconds?: number;
  readonly growing?: boolean;
  /** What happens if the client stays slow. */
  readonly warning?: string;
}

/** The answer to `update`, then with a position, to `pause` and to `resume`. */
export interface Updated {
  readonly type: "updated";
  readonly id: string | null;
  readonly paused: boolean;
  readonly position?: string;
}

export interface Problem {
  readonly type: "error";
  readonly id?: string | null;
  readonly title: string;
  readonly detail?: string;
}

export type Message =
  | Snapshot
  | Change
  | Gap
  | Lag
  | Updated
  | Problem
  | { readonly type: "unsubscribed"; readonly id: string }
  /** The login ends at `expires`: the server asks for a fresh token. */
  | { readonly type: "authenticate"; readonly expires: string }
  | { readonly type: "authenticated"; readonly expires: string }
  | { readonly type: "pong" };

export interface QueryResult {
  readonly columns: readonly Column[];
  readonly rows: readonly (readonly Value[])[];
  readonly truncated: boolean;
  readonly elapsed_ms: number;
}

/** The server's explanation in a problem+json body or an `error` message. */
export function explain(problem: { title?: string; detail?: string }): string {
  const text = [problem.detail, problem.title].find((part) => part !== undefined && part !== "");
  return text ?? "the server gave no reason";
}
