import type { System } from "@millstream/client";
import { svgElement, element, setText } from "./dom";
import { Flow, type Channel } from "./flow";
import * as format from "./format";
import { BOXES, statusesOf, unreachable, type Note, type TierStatus } from "./tier-status";

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

/** The diagram of the data's path, with the current rate of each tier. */
export class Tiers {
  readonly root: HTMLElement;
  private readonly boxes: readonly Box[];
  private readonly flow: Flow;

  constructor() {
    this.boxes = BOXES.map(({ name, kind, id }) => box(name, kind, id));
    const list = element("ol", {}, ...this.boxes.map((each) => each.root));
    this.root = element("section", { class: "tiers", "aria-label": "Tiers" }, list);
    this.flow = new Flow(this.root);
    this.root.prepend(this.flow.canvas);
  }

  /** Shows the newest description; `null` if the server does not answer. */
  paint(system: System | null): void {
    const statuses = system === null ? unreachable() : statusesOf(system);
    statuses.forEach((status, index) => {
      const target = this.boxes[index];
      if (target !== undefined) paintBox(target, status);
    });
    this.flow.show(this.channels(statuses));
  }

  private channels(statuses: readonly TierStatus[]): Channel[] {
    const down = (index: number): boolean => statuses[index]?.state === "down";
    return this.boxes.slice(1).flatMap((to, index) => {
      const from = this.boxes[index];
      // The rate of a channel is that of the tier at its left; senders have none, so the first channel uses collect's.
      const rate = statuses[index === 0 ? 1 : index]?.rate ?? 0;
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
  const spark = svgElement("polyline", { class: "spark" });
  const svg = svgElement("svg", { viewBox: "0 0 60 16", preserveAspectRatio: "none", "aria-hidden": "true" }, spark);
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

function paintBox(target: Box, status: TierStatus): void {
  target.root.dataset.state = status.state;
  setText(target.state, status.state === "none" ? "" : status.state);
  setText(target.figure, status.figure ?? format.rate(status.rate ?? 0));
  setText(target.unit, status.unit ?? "/s");
  const { latency } = status;
  setText(
    target.latency,
    latency === undefined || latency === null ? "" : `${format.duration(latency.p50)} · p99 ${format.duration(latency.p99)}`,
  );
  target.latency.title = "Median and 99th percentile over the last seconds";
  paintNotes(target.notes, status.notes ?? []);
  if (status.figure === undefined) paintSparkline(target, status.rate ?? 0);
}

function paintNotes(target: HTMLElement, notes: readonly Note[]): void {
  const text = notes.map((note) => note.text + (note.tone ?? "")).join("|");
  if (target.dataset.text === text) return;
  target.dataset.text = text;
  target.replaceChildren(
    ...notes.map(({ text: words, tone, title }) =>
      element("span", { ...(tone === undefined ? {} : { class: tone }), ...(title ? { title } : {}) }, words),
    ),
  );
}

function paintSparkline(target: Box, rate: number): void {
  target.history.push(rate);
  if (target.history.length > HISTORY) target.history.shift();
  const most = Math.max(...target.history, 1e-9);
  const start = HISTORY - target.history.length;
  const points = target.history.map((value, index) => `${start + index},${15 - (value / most) * 13}`);
  target.spark.setAttribute("points", points.join(" "));
}
