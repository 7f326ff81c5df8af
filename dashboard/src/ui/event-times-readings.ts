import type { Drift, StreamSkew, StreamTimes, System } from "../net/protocol";
import { instantOf } from "../state/columns";
import * as format from "./format";

export interface Count {
  readonly text: string;
  readonly tone: "" | "warm" | "bad";
  readonly title: string;
}

export interface StreamReading {
  readonly stream: string;
  readonly watermark: string;
  readonly skew: string;
  readonly counts: readonly Count[];
}

export interface DriftReading {
  readonly field: string;
  readonly before: string;
  readonly now: string;
  readonly since: string;
}

/** What is told of events in their own time. */
export interface TimesReading {
  readonly streams: readonly StreamReading[];
  readonly drifts: readonly DriftReading[];
}

/** Out of the server's description; only streams whose events have a time of their own. */
export function timesOf(system: System, now: number): TimesReading {
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
  const at = instantOf(watermark ?? undefined);
  return at === null ? "no watermark yet" : `watermark ${format.instant(at, now)}, ${format.duration(Math.max(0, now - at))} ago`;
}

/** How late events come, over the last seconds in which some came, and how many overtook each other; nothing if none has come. */
function skewOf({ skew_ms: skew, out_of_order: unordered = 0 }: StreamSkew = {}): string {
  if (skew === undefined || skew === null) return "";
  const { p50, p99, max } = skew;
  return `skew ${span(p50)} · p99 ${span(p99)} · max ${span(max)}, ${format.number(unordered)} out of order`;
}

function span(milliseconds: number): string {
  return milliseconds < 0 ? `−${format.duration(-milliseconds)}` : format.duration(milliseconds);
}

/** What a window did not get is always named, so that a 0 can be seen; what is lost only if some is. */
function countsOf({ in_order = 0, late = 0, future = 0, broken = 0, lost = 0 }: StreamTimes): Count[] {
  const warm = (count: number): "" | "warm" => (count > 0 ? "warm" : "");
  return [
    { text: `${format.number(in_order)} in time`, tone: "", title: "No window missed them" },
    { text: `${format.number(late)} late`, tone: warm(late), title: "A window missed them: they are in the late topic" },
    { text: `${format.number(future)} from the future`, tone: warm(future), title: "Dated further ahead than the stream allows: in the late topic" },
    { text: `${format.number(broken)} broken`, tone: warm(broken), title: "Without a time that can be read: in the late topic" },
    ...(lost === 0 ? [] : [{ text: `${format.number(lost)} lost`, tone: "bad" as const, title: "Retention took them before they were read" }]),
  ];
}

function driftOf({ stream, field, at, before, now: after }: Drift, now: number): DriftReading {
  return { field: `${stream}.${field}`, before, now: after, since: `since ${format.instant(at, now)}` };
}
