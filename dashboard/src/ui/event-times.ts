import type { System } from "@millstream/client";
import { element, setChildren } from "./dom";
import { timesOf, type DriftStatus, type StreamStatus } from "./event-times-status";

/** The event time of each stream, and the fields whose values drift. */
export class EventTimes {
  readonly root: HTMLElement;
  private readonly streams = element("ul", { class: "streams" });
  private readonly drifts = element("ul", { class: "drifts" });
  private readonly drifting = element("div", { class: "cell", role: "status" }, element("h3", {}, "Drift"), this.drifts);

  constructor() {
    const times = element("div", { class: "cell" }, element("h3", {}, "Event time"), this.streams);
    this.root = element("section", { class: "event-times", "aria-label": "Event time" }, times, this.drifting);
    this.root.hidden = true;
  }

  /** Shows the newest description; the last one stays when the server does not answer. */
  paint(system: System | null): void {
    this.root.classList.toggle("stale", system === null || system.tiers.analyze.state === "down");
    if (system === null) return;
    const { streams, drifts } = timesOf(system, Date.parse(system.now));
    this.root.hidden = streams.length === 0 && drifts.length === 0;
    this.drifting.hidden = drifts.length === 0;
    setChildren(this.streams, streams, () => streams.map(stream));
    setChildren(this.drifts, drifts, () => drifts.map(drift));
  }
}

function stream({ stream: name, watermark, skew, counts }: StreamStatus): HTMLElement {
  const parts = counts.map(({ text, tone, title }) => element("span", { "data-tone": tone, title }, text));
  const title = "Delay between event time and arrival: median, 99th percentile and maximum";
  const late = skew === "" ? null : element("span", { class: "aside", title }, skew);
  return element("li", {}, element("b", {}, name), element("span", { class: "aside" }, watermark), late, ...parts);
}

function drift({ field, before, now, since }: DriftStatus): HTMLElement {
  return element(
    "li",
    { title: "The distribution of its values has changed" },
    element("b", {}, field),
    element("span", { "data-tone": "warm" }, now),
    element("span", { class: "aside" }, `before: ${before}`),
    element("span", { class: "aside" }, since),
  );
}
