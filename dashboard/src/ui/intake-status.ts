import type { CollectTier, JournalState, Latency, SourceState, System } from "@millstream/client";
import * as format from "./format";
import { measuresOf, STEPS } from "./step-times-status";

type Tone = "good" | "warm" | "bad";

export interface SourceStatus {
  readonly stream: string;
  readonly kind: string;
  readonly tone: Tone;
  readonly text: string;
  readonly title: string;
}

export interface StepStatus {
  readonly name: string;
  readonly mean: string;
  readonly p99: string;
  readonly title: string;
}

export interface JournalStatus {
  readonly text: string;
  readonly detail: string;
  readonly share: number;
  readonly tone: Tone;
}

export interface Term {
  readonly name: string;
  readonly count: number;
  readonly tone?: "warm" | "bad";
}

/** The texts about collecting: sources, step times, journal and counts. */
export interface IntakeStatus {
  readonly sources: readonly SourceStatus[];
  readonly more: number;
  readonly steps: readonly StepStatus[];
  readonly journal: JournalStatus | null;
  readonly accepted: number;
  readonly terms: readonly Term[];
  readonly unaccounted: number;
}

const MAX_SOURCES = 3;
const NEARLY_FULL = 0.8;

/** The texts for a system; sources with problems come first. */
export function intakeOf({ streams, tiers: { collect } }: System): IntakeStatus {
  const all = (collect.sources ?? []).map(sourceOf);
  const sources = [...all.filter((each) => each.tone !== "good"), ...all.filter((each) => each.tone === "good")];
  const open = streams.length > 0 && all.length === 0;
  return {
    sources: open ? [overHttp(streams.length)] : sources.slice(0, MAX_SOURCES),
    more: Math.max(0, sources.length - MAX_SOURCES),
    steps: STEPS.map(({ name, field }) => step(name, collect[field])),
    journal: collect.journal ? journalOf(collect.journal) : null,
    accepted: collect.accepted ?? 0,
    terms: termsOf(collect),
    unaccounted: collect.unaccounted ?? 0,
  };
}

function overHttp(streams: number): SourceStatus {
  const title = "Senders post events; no source is read";
  return { stream: streams === 1 ? "1 stream" : `${streams} streams`, kind: "HTTP", tone: "good", text: "open", title };
}

function sourceOf(source: SourceState): SourceStatus {
  const healthy = ["connected", "listening"].includes(source.state);
  const behind =
    source.behind === undefined || source.behind === null || source.behind === 0
      ? ""
      : ` · ${format.brief(source.behind)} ${source.behind_unit ?? ""} behind`;
  const lost = source.lost ? ` · ${format.brief(source.lost)} lost` : "";
  const words = [source.error, source.warning].filter(Boolean).join(" – ");
  const text = healthy ? `${format.rate(source.rate ?? 0)}/s${behind}${lost}` : source.state;
  return {
    stream: source.stream,
    kind: source.kind,
    tone: !healthy ? (source.state === "stopped" ? "bad" : "warm") : source.lost || source.warning ? "warm" : "good",
    text,
    title: `${source.state}: ${source.url}${words ? ` – ${words}` : ""}`,
  };
}

function step(name: string, latency: Latency | null | undefined): StepStatus {
  if (latency === undefined || latency === null) return { name, mean: "–", p99: "", title: "" };
  const { min, mean, p99, max } = measuresOf(latency);
  const title = `After its arrival an event is ${name}: min ${min}, mean ${mean}, p99 ${p99}, max ${max}`;
  return { name, mean, p99: `p99 ${p99}`, title };
}

function journalOf(journal: JournalState): JournalStatus {
  const room = journal.max_bytes ?? 0;
  const share = room === 0 ? 0 : Math.min(1, (journal.stored_bytes ?? 0) / room);
  const detail = `${format.bytes(journal.stored_bytes ?? 0)} of ${format.bytes(room)}`;
  if (journal.broken) return { text: "accepts nothing", detail: journal.broken, share, tone: "bad" };
  if (share >= 1) return { text: "full", detail, share, tone: "bad" };
  const entries = journal.entries ?? 0;
  const text = entries === 0 ? "nothing waits" : `${format.brief(entries)} ${entries === 1 ? "waits" : "wait"}`;
  return { text, detail, share, tone: share >= NEARLY_FULL ? "warm" : "good" };
}

/** The sum of the accepted events. Rare terms are listed only if they are not zero. */
function termsOf(collect: CollectTier): Term[] {
  const { rejected = 0, failed = 0, shed = 0, duplicates = 0, damaged = 0 } = collect;
  const rare: Term[] = [
    { name: "failed", count: failed, tone: "bad" },
    { name: "shed", count: shed, tone: "warm" },
    { name: duplicates === 1 ? "duplicate" : "duplicates", count: duplicates },
    { name: "damaged", count: damaged, tone: "bad" },
  ];
  return [
    { name: "logged", count: collect.logged ?? 0 },
    { name: "rejected", count: rejected, ...(rejected > 0 ? { tone: "warm" as const } : {}) },
    ...rare.filter((term) => term.count !== 0),
    { name: "pending", count: collect.pending ?? 0 },
  ];
}
