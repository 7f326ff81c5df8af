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

/** All rows of the view up to `position`. */
export interface Snapshot {
  readonly type: "snapshot";
  readonly id: string;
  readonly position: string;
  readonly rows: readonly { readonly key: Key; readonly row: Row }[];
}

export interface Change {
  readonly type: "change";
  readonly id: string;
  readonly op: "upsert" | "delete";
  readonly key: Key;
  readonly row: Row | null;
  readonly position: string;
}

/** The server cannot continue from the requested position; a snapshot follows. */
export interface Gap {
  readonly type: "gap";
  readonly id: string;
  readonly position: string;
  readonly reason: string;
}

/** The number of changes that this client has still to receive. */
export interface Lag {
  readonly type: "lag";
  readonly id: string;
  readonly behind: number;
  readonly position: string;
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
  | Problem
  | { readonly type: "unsubscribed"; readonly id: string }
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
