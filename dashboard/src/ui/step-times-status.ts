import type { Latency, System } from "@millstream/client";
import * as format from "./format";

/** The steps of collecting an event, in order. Each is timed from the event's arrival. */
export const STEPS = [
  { name: "on disk", field: "journaled_ms" },
  { name: "sent", field: "sent_ms" },
  { name: "acknowledged", field: "latency_ms" },
] as const;

export const MEASURES = ["min", "mean", "p99", "max"] as const;

export type Measures = Readonly<Record<(typeof MEASURES)[number], string>>;

export interface StreamStepsStatus {
  readonly stream: string;
  readonly steps: readonly Measures[];
}

const UNMEASURED: Measures = { min: "–", mean: "–", p99: "–", max: "–" };

/** Every stream in the pipeline's order, also before its first event, so that lines never move. */
export function stepTimesOf({ streams, tiers: { collect } }: System): StreamStepsStatus[] {
  return streams.map(({ name }) => ({
    stream: name,
    steps: STEPS.map(({ field }) => measuresOf(collect.streams?.[name]?.[field])),
  }));
}

export function measuresOf(latency: Latency | null | undefined): Measures {
  if (latency === undefined || latency === null) return UNMEASURED;
  const { min = 0, mean = latency.p50, p99, max } = latency;
  return { min: format.duration(min), mean: format.duration(mean), p99: format.duration(p99), max: format.duration(max) };
}
