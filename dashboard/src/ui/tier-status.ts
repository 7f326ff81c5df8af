import type { AnalyzeTier, Failure, Latency, System } from "@millstream/client";
import * as format from "./format";
import { rebuildNote } from "./rebuild";

/** The content of one box. */
export interface TierStatus {
  readonly state: string;
  readonly rate: number | null;
  readonly figure?: string;
  readonly unit?: string;
  readonly latency?: Latency | null;
  readonly notes?: readonly Note[];
}

export interface Note {
  readonly text: string;
  readonly tone?: "bad" | "warm";
  readonly title?: string;
}

/** The boxes in the order of the data's path. */
export const BOXES = [
  { id: "senders", name: "Senders", kind: "end" },
  { id: "collect", name: "Collect", kind: "tier" },
  { id: "stream-log", name: "Kafka", kind: "log" },
  { id: "analyze", name: "Analyze", kind: "tier" },
  { id: "view-log", name: "Kafka", kind: "log" },
  { id: "serve", name: "Serve", kind: "tier" },
  { id: "clients", name: "Clients", kind: "end" },
] as const;

/** The content of each box, from the server's description. */
export function statusesOf(system: System): TierStatus[] {
  const { collect, log, analyze, serve } = system.tiers;
  const sources = collect.sources ?? [];
  const unhealthy = sources.filter((source) => !["connected", "listening"].includes(source.state));
  const clients = serve.clients ?? 0;
  const failing = Object.entries(analyze.views ?? {}).filter(([, view]) =>
    ["failed", "restarting"].includes(view.state ?? ""),
  );
  return [
    {
      state: "none",
      rate: null,
      figure: String(system.streams.length),
      unit: system.streams.length === 1 ? "stream" : "streams",
      notes: [
        ...(sources.length === 0 ? [{ text: "over HTTP" }] : []),
        ...sources.map((source) => ({
          text: `${source.kind} ${source.state}`,
          title: `${source.stream} from ${source.url}${source.error === undefined ? "" : `: ${source.error}`}`,
          ...(unhealthy.includes(source) ? { tone: "warm" as const } : {}),
        })),
      ],
    },
    {
      state: collect.state,
      rate: collect.rate ?? 0,
      ...(collect.rate === null ? { figure: "–" } : {}),
      latency: collect.latency_ms ?? null,
      notes: [...failures(system, "collect"), ...silent(system, "collect"), ...counts(system)],
    },
    { state: log.state, rate: log.rate ?? 0, notes: [...failures(system, "kafka"), { text: "stream topics" }] },
    {
      state: analyze.state,
      rate: analyze.rate ?? 0,
      latency: analyze.latency_ms ?? null,
      notes: [
        ...failures(system, "analyze"),
        ...silent(system, "analyze"),
        { text: system.views.length === 1 ? "1 query" : `${system.views.length} queries` },
        ...rebuilding(analyze),
        ...failing.map(([name, view]) => ({ text: `${name} ${view.state ?? ""}`, title: view.error ?? "", tone: "bad" as const })),
      ],
    },
    { state: log.state, rate: analyze.rate ?? 0, notes: [...failures(system, "kafka"), { text: "view topics" }] },
    {
      state: serve.state,
      rate: serve.rate ?? 0,
      latency: serve.latency_ms ?? null,
      notes: [...failures(system, "serve"), ...instances(serve.instances)],
    },
    { state: "none", rate: clients === 0 ? 0 : (serve.rate ?? 0), figure: format.number(clients), unit: "connected" },
  ];
}

function counts({ tiers: { collect } }: System): Note[] {
  const rejected = collect.rejected ?? 0;
  const pending = collect.pending ?? 0;
  return [
    { text: `${format.brief(rejected)} rejected`, ...(rejected > 0 ? { tone: "warm" as const } : {}) },
    { text: `${format.brief(pending)} pending`, ...(pending > 1_000 ? { tone: "warm" as const } : {}) },
  ];
}

/** A note for each failing process; the title shows the end of its log. */
function failures({ failing = [] }: System, process: string): Note[] {
  return failing
    .filter((failure) => failure.process === process)
    .map((failure) => ({ text: deathsOf(failure), tone: "bad", title: [failure.reason, failure.log, ...failure.lines].join("\n") }));
}

function deathsOf({ deaths }: Failure): string {
  return deaths === 1 ? "died" : `died ${format.number(deaths)} times`;
}

/** A note that a tier's figures are old, for example because its process hangs. */
function silent({ tiers }: System, tier: "collect" | "analyze"): Note[] {
  const { state, reported_at = null } = tiers[tier];
  if (state !== "down" || reported_at === null) return [];
  const title = "It has not reported since then: its figures are from that time";
  return [{ text: `silent since ${format.time(Date.parse(reported_at))}`, tone: "bad", title }];
}

function rebuilding({ views = {} }: AnalyzeTier): Note[] {
  const notes = Object.entries(views).map(([name, { rebuild }]) => (rebuild ? rebuildNote(name, rebuild) : null));
  return notes.filter((text) => text !== null).map((text) => ({ text, tone: "warm", title: "The old rows are shown until it is ready" }));
}

function instances(count: number | undefined): Note[] {
  return count === undefined ? [] : [{ text: count === 1 ? "1 server" : `${count} servers` }];
}

/** The boxes when serve does not answer. The state of the other tiers is unknown, not down. */
export function unreachable(): TierStatus[] {
  return BOXES.map(({ id, kind }) => {
    const state = id === "serve" ? "down" : kind === "end" ? "none" : "unknown";
    return { state, rate: null, figure: "–", unit: "", notes: [] };
  });
}

const CONSEQUENCES = {
  collect: "Collect is down: it accepts no new events.",
  log: "Kafka is down: nothing moves until it is up again.",
  analyze: "Analyze is down: views do not change, and events wait in Kafka until it is up again.",
  serve: "Serve is down.",
} as const;

/** The warnings that concern all figures on the page; empty if there are none. */
export function warningsOf(system: System | null): string {
  if (system === null) {
    return "The server does not answer. The page shows the last rows that it received, and continues by itself when the server is back.";
  }
  const names = ["collect", "log", "analyze", "serve"] as const;
  const { journal, unaccounted } = system.tiers.collect;
  return [
    ...(system.failing ?? []).map(
      (failure) =>
        `${failure.process} ${deathsOf(failure)}, last by ${failure.reason}, and is restarted` +
        (failure.lines.length === 0 ? "." : `; its log ends with: ${failure.lines.at(-1) ?? ""}.`),
    ),
    ...names.filter((name) => system.tiers[name].state === "down").map((name) => CONSEQUENCES[name]),
    ...(journal?.broken ? [`The journal accepts nothing (${journal.broken}): senders must wait.`] : []),
    ...(journal?.damage?.entries ? [`${format.number(journal.damage.entries)} journal entries with accepted events are damaged and lost: run millstream failed list.`] : []),
    ...(unaccounted ? [`${format.number(unaccounted)} accepted events are unaccounted for: run millstream audit.`] : []),
  ].join(" ");
}
