import type { Latency, System } from "../net/protocol";
import { drawn, element, say } from "./dom";
import { Flow, type Channel } from "./flow";
import * as format from "./format";

const HISTORY = 60;

interface Box {
  readonly root: HTMLLIElement;
  readonly state: HTMLElement;
  readonly figure: HTMLElement;
  readonly unit: HTMLElement;
  readonly latency: HTMLElement;
  readonly notes: HTMLElement;
  readonly spark: SVGPolylineElement;
  readonly history: number[];
}

interface Reading {
  readonly state: string;
  readonly rate: number | null;
  readonly figure?: string;
  readonly unit?: string;
  readonly latency?: Latency | null;
  readonly notes?: readonly Note[];
}

interface Note {
  readonly text: string;
  readonly tone?: "bad" | "warm";
  readonly title?: string;
}

const BOXES = [
  { id: "senders", name: "Senders", kind: "end" },
  { id: "collect", name: "Collect", kind: "tier" },
  { id: "stream-log", name: "Kafka", kind: "log" },
  { id: "analyze", name: "Analyze", kind: "tier" },
  { id: "view-log", name: "Kafka", kind: "log" },
  { id: "serve", name: "Serve", kind: "tier" },
  { id: "clients", name: "Clients", kind: "end" },
] as const;

/** The path of the data, with what runs through each tier right now. */
export class Tiers {
  readonly root: HTMLElement;
  private readonly boxes: readonly Box[];
  private readonly flow: Flow;

  constructor() {
    this.boxes = BOXES.map(({ name, kind, id }) => box(name, kind, id));
    const list = element("ol", {}, ...this.boxes.map((each) => each.root));
    this.root = element("section", { class: "tiers", "aria-label": "The tiers" }, list);
    this.flow = new Flow(this.root);
    this.root.prepend(this.flow.canvas);
  }

  /** Draws the newest answer of the server; `null` when it doesn't answer. */
  paint(system: System | null): void {
    const readings = system === null ? unreachable() : read(system);
    readings.forEach((reading, index) => {
      const target = this.boxes[index];
      if (target !== undefined) write(target, reading);
    });
    this.flow.show(this.channels(readings));
  }

  private channels(readings: readonly Reading[]): Channel[] {
    const down = (index: number): boolean => ["down", "unknown"].includes(readings[index]?.state ?? "");
    return this.boxes.slice(1).flatMap((to, index) => {
      const from = this.boxes[index];
      // What enters an end or a log is what its neighbour sends; a log passes on what it got.
      const rate = readings[index === 0 ? 1 : index]?.rate ?? 0;
      return from === undefined ? [] : [{ from: from.root, to: to.root, rate, broken: down(index) || down(index + 1) }];
    });
  }
}

function box(name: string, kind: string, id: string): Box {
  const state = element("span", { class: "tier-state" });
  const figure = element("span", { class: "figure" });
  const unit = element("span", { class: "unit" });
  const latency = element("p", { class: "tier-latency" });
  const notes = element("p", { class: "tier-notes" });
  const spark = drawn("polyline", { class: "spark" });
  const svg = drawn("svg", { viewBox: "0 0 60 16", preserveAspectRatio: "none", "aria-hidden": "true" }, spark);
  const root = element(
    "li",
    { class: `box ${kind}`, "data-box": id },
    element("h3", {}, element("span", {}, name), state),
    element("p", { class: "tier-rate" }, figure, unit),
    svg as unknown as Node,
    latency,
    notes,
  );
  return { root, state, figure, unit, latency, notes, spark, history: [] };
}

function read(system: System): Reading[] {
  const { collect, log, analyze, serve } = system.tiers;
  const sources = collect.sources ?? [];
  const troubled = sources.filter((source) => source.state !== "connected");
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
    { state: collect.state, rate: collect.rate ?? 0, latency: collect.latency_ms ?? null, notes: counts(system) },
    { state: log.state, rate: log.rate ?? 0, notes: [{ text: "stream topics" }] },
    {
      state: analyze.state,
      rate: analyze.rate ?? 0,
      latency: analyze.latency_ms ?? null,
      notes: [
        { text: system.views.length === 1 ? "1 query" : `${system.views.length} queries` },
        ...failing.map(([name, view]) => ({ text: `${name} ${view.state ?? ""}`, title: view.error ?? "", tone: "bad" as const })),
      ],
    },
    { state: log.state, rate: analyze.rate ?? 0, notes: [{ text: "view topics" }] },
    { state: serve.state, rate: serve.rate ?? 0, latency: serve.latency_ms ?? null, notes: instances(serve.instances) },
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

function instances(count: number | undefined): Note[] {
  return count === undefined ? [] : [{ text: count === 1 ? "1 server" : `${count} servers` }];
}

/** Without serve nothing is known of the others: they are not shown as down. */
function unreachable(): Reading[] {
  return BOXES.map(({ id, kind }) => {
    const state = id === "serve" ? "down" : kind === "end" ? "none" : "unknown";
    return { state, rate: null, figure: "–", unit: "", notes: [] };
  });
}

function write(target: Box, reading: Reading): void {
  target.root.dataset.state = reading.state;
  say(target.state, reading.state === "none" ? "" : reading.state);
  say(target.figure, reading.figure ?? format.rate(reading.rate ?? 0));
  say(target.unit, reading.unit ?? "/s");
  const { latency } = reading;
  say(
    target.latency,
    latency === undefined || latency === null ? "" : `${format.duration(latency.p50)} · p99 ${format.duration(latency.p99)}`,
  );
  target.latency.title = "Median and 99th percentile over the last seconds";
  writeNotes(target.notes, reading.notes ?? []);
  if (reading.figure === undefined) trace(target, reading.rate ?? 0);
}

function writeNotes(target: HTMLElement, notes: readonly Note[]): void {
  const text = notes.map((note) => note.text + (note.tone ?? "")).join("|");
  if (target.dataset.text === text) return;
  target.dataset.text = text;
  target.replaceChildren(
    ...notes.map(({ text: words, tone, title }) =>
      element("span", { ...(tone === undefined ? {} : { class: tone }), ...(title ? { title } : {}) }, words),
    ),
  );
}

function trace(target: Box, rate: number): void {
  target.history.push(rate);
  if (target.history.length > HISTORY) target.history.shift();
  const most = Math.max(...target.history, 1e-9);
  const start = HISTORY - target.history.length;
  const points = target.history.map((value, index) => `${start + index},${15 - (value / most) * 13}`);
  target.spark.setAttribute("points", points.join(" "));
}
