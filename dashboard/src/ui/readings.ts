import type { AnalyzeTier, Failure, Latency, System } from "../net/protocol";
import * as format from "./format";
import { briefly } from "./rebuild";

/** What one box says. */
export interface Reading {
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

/** What each box says, out of the server's description. */
export function read(system: System): Reading[] {
  const { collect, log, analyze, serve } = system.tiers;
  const sources = collect.sources ?? [];
  const troubled = sources.filter((source) => !["connected", "listening"].includes(source.state));
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
          ...(troubled.includes(source) ? { tone: "warm" as const } : {}),
        })),
      ],
    },
    {
      state: collect.state,
      rate: collect.rate ?? 0,
      ...(collect.rate === null ? { figure: "–" } : {}),
      latency: collect.latency_ms ?? null,
      notes: [...dying(system, "collect"), ...silent(system, "collect"), ...counts(system)],
    },
    { state: log.state, rate: log.rate ?? 0, notes: [...dying(system, "kafka"), { text: "stream topics" }] },
    {
      state: analyze.state,
      rate: analyze.rate ?? 0,
      latency: analyze.latency_ms ?? null,
      notes: [
        ...dying(system, "analyze"),
        ...silent(system, "analyze"),
        { text: system.views.length === 1 ? "1 query" : `${system.views.length} queries` },
        ...rebuilding(analyze),
        ...failing.map(([name, view]) => ({ text: `${name} ${view.state ?? ""}`, title: view.error ?? "", tone: "bad" as const })),
      ],
    },
    { state: log.state, rate: analyze.rate ?? 0, notes: [...dying(system, "kafka"), { text: "view topics" }] },
    {
      state: serve.state,
      rate: serve.rate ?? 0,
      latency: serve.latency_ms ?? null,
      notes: [...dying(system, "serve"), ...instances(serve.instances)],
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

/** That a process keeps dying; the end of its log is the title. */
function dying({ failing = [] }: System, process: string): Note[] {
  return failing
    .filter((failure) => failure.process === process)
    .map((failure) => ({ text: deathsOf(failure), tone: "bad", title: [failure.reason, failure.log, ...failure.lines].join("\n") }));
}

function deathsOf({ deaths }: Failure): string {
  return deaths === 1 ? "died" : `died ${format.number(deaths)} times`;
}

/** That a tier's figures are old: a process that hangs looks like that. */
function silent({ tiers }: System, tier: "collect" | "analyze"): Note[] {
  const { state, reported_at = null } = tiers[tier];
  if (state !== "down" || reported_at === null) return [];
  const title = "It has not reported since then: what is shown of it is of that time";
  return [{ text: `silent since ${format.instant(Date.parse(reported_at))}`, tone: "bad", title }];
}

function rebuilding({ views = {} }: AnalyzeTier): Note[] {
  const told = Object.entries(views).map(([name, { rebuild }]) => (rebuild ? briefly(name, rebuild) : null));
  return told.filter((text) => text !== null).map((text) => ({ text, tone: "warm", title: "The old rows are shown until it is ready" }));
}

function instances(count: number | undefined): Note[] {
  return count === undefined ? [] : [{ text: count === 1 ? "1 server" : `${count} servers` }];
}

/** Without serve nothing is known of the others: they are not shown as down. */
export function unreachable(): Reading[] {
  return BOXES.map(({ id, kind }) => {
    const state = id === "serve" ? "down" : kind === "end" ? "none" : "unknown";
    return { state, rate: null, figure: "–", unit: "", notes: [] };
  });
}

const CONSEQUENCES = {
  collect: "Collect is down: no new events come in.",
  log: "Kafka is down: nothing moves until it is back.",
  analyze: "Analyze is down: the views stand still, and events wait in Kafka until it is back.",
  serve: "Serve is down.",
} as const;

/** What a reader should know before believing the numbers; empty when all is well. */
export function troublesOf(system: System | null): string {
  if (system === null) {
    return "The server does not answer. The rows below are the last that came; this page goes on by itself when it is back.";
  }
  const names = ["collect", "log", "analyze", "serve"] as const;
  const { journal, unaccounted } = system.tiers.collect;
  return [
    ...(system.failing ?? []).map(
      (failure) =>
        `${failure.process} ${deathsOf(failure)}, last by ${failure.reason}, and is started again and again` +
        (failure.lines.length === 0 ? "." : `; its log ends with: ${failure.lines.at(-1) ?? ""}.`),
    ),
    ...names.filter((name) => system.tiers[name].state === "down").map((name) => CONSEQUENCES[name]),
    ...(journal?.broken ? [`The journal takes nothing (${journal.broken}): senders are told to wait.`] : []),
    ...(journal?.damage?.entries ? [`${format.number(journal.damage.entries)} damaged entries of the journal are lost, with accepted events in them: run millstream failed list.`] : []),
    ...(unaccounted ? [`${format.number(unaccounted)} accepted events are accounted for nowhere: run millstream audit.`] : []),
  ].join(" ");
}
