import type { CollectTier, JournalState, Latency, SourceState, System } from "../net/protocol";
import * as format from "./format";
import { measuresOf, STEPS } from "./step-times-readings";

type Tone = "good" | "warm" | "bad";

export interface SourceReading {
  readonly stream: string;
  readonly kind: string;
  readonly tone: Tone;
  readonly text: string;
  readonly title: string;
}

export interface StepReading {
  readonly name: string;
  readonly mean: string;
  readonly p99: string;
  readonly title: string;
}

export interface JournalReading {
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

/** What is told of events on their way in. */
export interface IntakeReading {
  readonly sources: readonly SourceReading[];
  readonly more: number;
  readonly steps: readonly StepReading[];
  readonly journal: JournalReading | null;
  readonly accepted: number;
  readonly terms: readonly Term[];
  readonly off: number;
}

const MOST_SOURCES = 3;
const NEARLY_FULL = 0.8;

/** Out of the server's description; sources in trouble come first. */
export function intakeOf({ streams, tiers: { collect } }: System): IntakeReading {
  const told = (collect.sources ?? []).map(sourceOf);
  const sources = [...told.filter((each) => each.tone !== "good"), ...told.filter((each) => each.tone === "good")];
  const open = streams.length > told.length && told.length === 0;
  return {
    sources: open ? [overHttp(streams.length)] : sources.slice(0, MOST_SOURCES),
    more: Math.max(0, sources.length - MOST_SOURCES),
    steps: STEPS.map(({ name, field }) => step(name, collect[field])),
    journal: collect.journal ? journalOf(collect.journal) : null,
    accepted: collect.accepted ?? 0,
    terms: termsOf(collect),
    off: collect.unaccounted ?? 0,
  };
}

function overHttp(streams: number): SourceReading {
  const title = "Senders hand events in; nothing is pulled";
  return { stream: streams === 1 ? "1 stream" : `${streams} streams`, kind: "HTTP", tone: "good", text: "open", title };
}

function sourceOf(source: SourceState): SourceReading {
  const heard = ["connected", "listening"].includes(source.state);
  const behind =
    source.behind === undefined || source.behind === null || source.behind === 0
      ? ""
      : ` · ${format.brief(source.behind)} ${source.behind_unit ?? ""} behind`;
  const lost = source.lost ? ` · ${format.brief(source.lost)} lost` : "";
  const words = [source.error, source.warning].filter(Boolean).join(" – ");
  const text = heard ? `${format.rate(source.rate ?? 0)}/s${behind}${lost}` : source.state;
  return {
    stream: source.stream,
    kind: source.kind,
    tone: !heard ? (source.state === "stopped" ? "bad" : "warm") : source.lost || source.warning ? "warm" : "good",
    text,
    title: `${source.state}: ${source.url}${words ? ` – ${words}` : ""}`,
  };
}

function step(name: string, latency: Latency | null | undefined): StepReading {
  if (latency === undefined || latency === null) return { name, mean: "–", p99: "", title: "" };
  const { min, mean, p99, max } = measuresOf(latency);
  const title = `After its arrival an event is ${name}: min ${min}, mean ${mean}, p99 ${p99}, max ${max}`;
  return { name, mean, p99: `p99 ${p99}`, title };
}

function journalOf(journal: JournalState): JournalReading {
  const room = journal.max_bytes ?? 0;
  const share = room === 0 ? 0 : Math.min(1, (journal.stored_bytes ?? 0) / room);
  const detail = `${format.bytes(journal.stored_bytes ?? 0)} of ${format.bytes(room)}`;
  if (journal.broken) return { text: "takes nothing", detail: journal.broken, share, tone: "bad" };
  if (share >= 1) return { text: "full", detail, share, tone: "bad" };
  const entries = journal.entries ?? 0;
  const text = entries === 0 ? "nothing waits" : `${format.brief(entries)} ${entries === 1 ? "waits" : "wait"}`;
  return { text, detail, share, tone: share >= NEARLY_FULL ? "warm" : "good" };
}

/** What the accepted events have become; what happens rarely is named where it did. */
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
