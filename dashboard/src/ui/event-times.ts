import type { System } from "../net/protocol";
import { element, fill } from "./dom";
import { timesOf, type DriftReading, type StreamReading } from "./event-times-readings";

/** A line below the intake: how far each stream has come in event time, and what has shifted in it. */
export class EventTimes {
  readonly root: HTMLElement;
  private readonly streams = element("ul", { class: "streams" });
  private readonly drifts = element("ul", { class: "drifts" });
  private readonly drifting = element("div", { class: "cell", role: "status" }, element("h3", {}, "Drift"), this.drifts);

  constructor() {
    const told = element("div", { class: "cell" }, element("h3", {}, "Event time"), this.streams);
    this.root = element("section", { class: "event-times", "aria-label": "Events in their own time" }, told, this.drifting);
    this.root.hidden = true;
  }

  /** Draws the newest answer; what was known stays when the server does not answer. */
  paint(system: System | null): void {
    this.root.classList.toggle("stale", system === null || system.tiers.analyze.state === "down");
    if (system === null) return;
    const { streams, drifts } = timesOf(system, Date.parse(system.now));
    this.root.hidden = streams.length === 0 && drifts.length === 0;
    this.drifting.hidden = drifts.length === 0;
    fill(this.streams, streams, () => streams.map(stream));
    fill(this.drifts, drifts, () => drifts.map(drift));
  }
}

function stream({ stream: name, watermark, skew, counts }: StreamReading): HTMLElement {
  const parts = counts.map(({ text, tone, title }) => element("span", { "data-tone": tone, title }, text));
  const title = "How much later than they happened events come: the median, the 99th percentile and the most";
  const late = skew === "" ? null : element("span", { class: "aside", title }, skew);
  return element("li", {}, element("b", {}, name), element("span", { class: "aside" }, watermark), late, ...parts);
}

function drift({ field, before, now, since }: DriftReading): HTMLElement {
  return element(
    "li",
    { title: "Its values are spread otherwise than they were lately" },
    element("b", {}, field),
    element("span", { "data-tone": "warm" }, now),
    element("span", { class: "aside" }, `before: ${before}`),
    element("span", { class: "aside" }, since),
  );
}
