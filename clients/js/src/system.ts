/** The description of a running system: the body of `GET /v1/system`. */

import type { Column } from "./messages.js";

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

/** A rebuild of a view, running or ended. Times are in milliseconds since 1970. */
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

/** Time from an event's arrival until it is on disk, sent to Kafka, and acknowledged by Kafka. */
export interface StepLatencies {
  readonly journaled_ms?: Latency | null;
  readonly sent_ms?: Latency | null;
  readonly latency_ms?: Latency | null;
}

/** Difference between arrival time and event time. It is negative for events dated ahead. */
export interface StreamSkew {
  readonly skew_ms?: Latency | null;
  readonly out_of_order?: number;
}

export interface CollectedStream extends StepLatencies, StreamSkew {}

/** Counts of a stream's events by their event time. */
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

/** Entries that journals lost to damage on the disk, until somebody acknowledges the loss. */
export interface JournalDamage {
  readonly entries?: number;
  readonly events?: number;
}

export interface Tier {
  readonly state: string;
  /** Null when the tier does not report. */
  readonly rate?: number | null;
  /** Time of its last report; null if it has sent none since this server started. */
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

/** A process that died and has not become healthy again. */
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
