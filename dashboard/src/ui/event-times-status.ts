import { type Drift, type StreamSkew, type StreamTimes, type System, timeOf } from "@millstream/client";
import * as format from "./format";

export interface Count {
  readonly text: string;
  readonly tone: "" | "warm" | "bad";
  readonly title: string;
}

export interface StreamStatus {
  readonly stream: string;
  readonly watermark: string;
  readonly skew: string;
  readonly counts: readonly Count[];
}

export interface DriftStatus {
  readonly field: string;
  readonly before: string;
  readonly now: string;
  readonly since: string;
}

/** The texts about streams in event time. */
export interface TimesStatus {
  readonly streams: readonly StreamStatus[];
  readonly drifts: readonly DriftStatus[];
}

/** The texts for a system; streams without event time are left out. */
export function timesOf(system: System, now: number): TimesStatus {
  const { streams = {}, drifts = [] } = system.tiers.analyze;
  const { streams: collected = {} } = system.tiers.collect;
  return {
    streams: system.streams.flatMap(({ name, watermark }) => {
      const times = streams[name];
      if (times === undefined) return [];
      return [{ stream: name, watermark: agoOf(watermark, now), skew: skewOf(collected[name]), counts: countsOf(times) }];
    }),
    drifts: drifts.map((drift) => driftOf(drift, now)),
  };
}

function agoOf(watermark: string | null | undefined, now: number): string {
  const at = timeOf(watermark ?? undefined);
  return at === null ? "no watermark yet" : `watermark ${format.time(at, now)}, ${format.duration(Math.max(0, now - at))} ago`;
}

/** Delay of recent events between event time and arrival, and the number of events out of order; empty before the first event. */
function skewOf({ skew_ms: skew, out_of_order: unordered = 0 }: StreamSkew = {}): string {
  if (skew === undefined || skew === null) return "";
  const { p50, p99, max } = skew;
  return `skew ${span(p50)} · p99 ${span(p99)} · max ${span(max)}, ${format.number(unordered)} out of order`;
}

function span(milliseconds: number): string {
  return milliseconds < 0 ? `−${format.duration(-milliseconds)}` : format.duration(milliseconds);
}

/** Events that windows did not count are always listed, so that a 0 can be seen; lost events only if there are some. */
function countsOf({ in_order = 0, late = 0, future = 0, broken = 0, lost = 0 }: StreamTimes): Count[] {
  const warm = (count: number): "" | "warm" => (count > 0 ? "warm" : "");
  return [
    { text: `${format.number(in_order)} in time`, tone: "", title: "Windows counted them" },
    { text: `${format.number(late)} late`, tone: warm(late), title: "Too late for a window: they are in the late topic" },
    { text: `${format.number(future)} from the future`, tone: warm(future), title: "Dated further ahead than the stream allows: they are in the late topic" },
    { text: `${format.number(broken)} broken`, tone: warm(broken), title: "Without a readable event time: they are in the late topic" },
    ...(lost === 0 ? [] : [{ text: `${format.number(lost)} lost`, tone: "bad" as const, title: "Kafka's retention deleted them before they were read" }]),
  ];
}

function driftOf({ stream, field, at, before, now: after }: Drift, now: number): DriftStatus {
  return { field: `${stream}.${field}`, before, now: after, since: `since ${format.time(at, now)}` };
}
