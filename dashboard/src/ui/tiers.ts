import type { System } from "../net/protocol";
import { drawn, element, say } from "./dom";
import { Flow, type Channel } from "./flow";
import * as format from "./format";
import { BOXES, read, unreachable, type Note, type Reading } from "./readings";

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
    const down = (index: number): boolean => readings[index]?.state === "down";
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
