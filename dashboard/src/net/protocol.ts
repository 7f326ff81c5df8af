/** What `serve` says: the system's description, the messages of a subscription, a query's answer. */

/** A JSON value as it comes in an event; integers too long for a double stay decimal text. */
export type Value = string | number | boolean | null | Value[] | { [name: string]: Value };
export type Row = Readonly<Record<string, Value>>;
export type Key = readonly Value[] | null;

export interface Column {
  readonly name: string;
  readonly type: string;
}

export interface Latency {
  readonly p50: number;
  readonly p99: number;
  readonly max: number;
  readonly count: number;
  readonly min?: number;
  readonly mean?: number;
}

export interface StreamDescription {
  readonly name: string;
  readonly columns: readonly Column[];
  readonly delivery?: string;
  readonly event_time?: string | null;
  readonly watermark?: string | null;
  readonly source?: { readonly kind: string; readonly url: string } | null;
}

export interface ViewDescription {
  readonly name: string;
  readonly inputs: readonly string[];
  readonly key: readonly string[] | null;
  readonly columns: readonly Column[];
  readonly window?: string | null;
  readonly keep_ms?: number | null;
  readonly mode: string | null;
  readonly reason: string;
  readonly guarantee?: string | null;
  readonly description?: string;
  readonly rows?: number;
  readonly position?: string;
  readonly watermark?: string | null;
}

/** A view that is computed anew beside the one that is served, or was; times in milliseconds. */
export interface Rebuild {
  readonly state: string;
  readonly request?: string;
  readonly done?: number;
  readonly total?: number;
  readonly error?: string;
  readonly since?: number | null;
  readonly started_at?: number;
  readonly ended_at?: number;
  readonly left_s?: number | null;
}

export interface ViewCounts {
  readonly state?: string;
  readonly restarts?: number;
  readonly error?: string;
  readonly rate?: number;
  readonly analyze_ms?: Latency | null;
  readonly serve_ms?: Latency | null;
  readonly behind?: number | null;
  readonly behind_s?: number;
  readonly trend?: string;
  readonly catch_up_s?: number | null;
  readonly broken?: number;
  readonly lost?: number;
  readonly rebuild?: Rebuild | null;
}

/** How long after its arrival an event is on disk, handed to Kafka, and acknowledged by it. */
export interface StepLatencies {
  readonly journaled_ms?: Latency | null;
  readonly sent_ms?: Latency | null;
  readonly latency_ms?: Latency | null;
}

/** How much later than they happened a stream's events come; below zero is ahead. */
export interface StreamSkew {
  readonly skew_ms?: Latency | null;
  readonly out_of_order?: number;
}

export interface CollectedStream extends StepLatencies, StreamSkew {}

/** What became of a stream's events in event time. */
export interface StreamTimes {
  readonly in_order?: number;
  readonly late?: number;
  readonly future?: number;
  readonly broken?: number;
  readonly lost?: number;
}

export interface Drift {
  readonly stream: string;
  readonly field: string;
  readonly at: number;
  readonly score: number;
  readonly before: string;
  readonly now: string;
}

export interface SourceState {
  readonly stream: string;
  readonly kind: string;
  readonly url: string;
  readonly state: string;
  readonly error?: string;
  readonly warning?: string;
  readonly rate?: number;
  readonly lost?: number;
  readonly behind?: number | null;
  readonly behind_unit?: string;
}

export interface JournalState {
  readonly entries?: number;
  readonly bytes?: number;
  readonly stored_bytes?: number;
  readonly max_bytes?: number;
  readonly broken?: string;
  readonly damage?: JournalDamage | null;
}

/** What journals have lost to damage on the disk, and nobody has acknowledged. */
export interface JournalDamage {
  readonly entries?: number;
  readonly events?: number;
}

export interface Tier {
  readonly state: string;
  /** Null when the tier does not report. */
  readonly rate?: number | null;
  /** When it was last heard of; null if never since this server started. */
  readonly reported_at?: string | null;
  readonly latency_ms?: Latency | null;
  readonly instances?: number;
}

export interface CollectTier extends Tier, StepLatencies {
  readonly accepted?: number;
  readonly logged?: number;
  readonly rejected?: number;
  readonly failed?: number;
  readonly shed?: number;
  readonly duplicates?: number;
  readonly damaged?: number;
  readonly pending?: number;
  readonly unaccounted?: number;
  readonly journal?: JournalState | null;
  readonly streams?: Readonly<Record<string, CollectedStream>>;
  readonly sources?: readonly SourceState[];
}

export interface ViewsTier extends Tier {
  readonly clients?: number;
  readonly views?: Readonly<Record<string, ViewCounts>>;
}

export interface AnalyzeTier extends ViewsTier {
  readonly streams?: Readonly<Record<string, StreamTimes>>;
  readonly drifts?: readonly Drift[];
}

/** A process that died and is not healthy again. */
export interface Failure {
  readonly process: string;
  readonly state: string;
  readonly deaths: number;
  readonly reason: string;
  readonly died_at: string;
  readonly log: string;
  readonly lines: readonly string[];
}

export interface System {
  readonly app: string;
  readonly version: string;
  readonly now: string;
  readonly streams: readonly StreamDescription[];
  readonly views: readonly ViewDescription[];
  readonly tiers: {
    readonly collect: CollectTier;
    readonly log: Tier;
    readonly analyze: AnalyzeTier;
    readonly serve: ViewsTier;
  };
  readonly failing?: readonly Failure[];
  readonly end_to_end_ms?: Latency | null;
}

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

export interface Gap {
  readonly type: "gap";
  readonly id: string;
  readonly position: string;
  readonly reason: string;
}

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

export interface QueryAnswer {
  readonly columns: readonly Column[];
  readonly rows: readonly (readonly Value[])[];
  readonly truncated: boolean;
  readonly elapsed_ms: number;
}

/** One sentence out of a problem+json body or an `error` message. */
export function explain(problem: { title?: string; detail?: string }): string {
  const words = [problem.detail, problem.title].find((part) => part !== undefined && part !== "");
  return words ?? "the server gave no reason";
}
