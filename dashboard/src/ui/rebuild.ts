import type { Rebuild } from "../net/protocol";
import { element, say } from "./dom";
import * as format from "./format";

/** How long the end of a rebuild that someone asked for is news. */
const NEWS_MS = 10 * 60_000;

export interface RebuildReading {
  readonly text: string;
  readonly left: string;
  readonly detail: string;
  readonly share: number;
  readonly tone: "good" | "warm" | "bad";
}

/** What is told of a view's rebuild; null if there is nothing to tell. */
export function rebuildOf(rebuild: Rebuild | null | undefined, now: number): RebuildReading | null {
  if (rebuild === null || rebuild === undefined) return null;
  const { state, ended_at = 0, error = "" } = rebuild;
  const isNews = ended_at === 0 || now - ended_at < NEWS_MS;
  const about = { left: "", detail: circumstances(rebuild, now) };
  if (state === "failed") {
    // A pipeline that changed in vain is news until it is mended.
    if (!isNews && rebuild.request) return null;
    const kept = "the rows before it are shown on";
    return { ...about, text: "The rebuild failed", detail: `${error || "no reason is known"} · ${kept}`, share: 1, tone: "bad" };
  }
  if (state === "done") {
    if (!isNews) return null;
    const began = "a new epoch: all rows were computed anew from the log";
    return { ...about, text: `Rebuilt at ${format.instant(ended_at, now)}`, detail: began, share: 1, tone: "good" };
  }
  return { ...about, ...stageOf(rebuild), tone: "warm" };
}

/** A rebuild in three words, for the box of its tier. */
export function briefly(name: string, { state, done = 0, total = 0 }: Rebuild): string | null {
  if (state === "done" || state === "failed") return null;
  return state === "replaying" && total > 0 ? `${name} rebuilding ${percent(done / total)}` : `${name} rebuilding`;
}

function stageOf({ state, done = 0, total = 0, left_s = null, request }: Rebuild): { text: string; left: string; share: number } {
  const share = total === 0 ? 0 : Math.min(1, done / total);
  const left = left_s === null ? "" : `about ${format.roughly(left_s)} left`;
  switch (state) {
    case "replaying":
      return { text: `Rebuilding, ${percent(share)}`, left, share };
    case "starting":
      return { text: "Rebuilding, going live", left: "seconds left", share: 1 };
    case "ready":
      return { text: request ? "Rebuilt, and waits for a yes" : "Rebuilt, about to take over", left: "", share: 1 };
    default:
      return { text: "Rebuilding, waits for the views that it reads", left: "", share: 0 };
  }
}

function circumstances({ done = 0, total = 0, since = null, started_at = 0, request }: Rebuild, now: number): string {
  return [
    ...(total === 0 ? [] : [`${format.number(done)} of ${format.number(total)} records`]),
    ...(since === null ? [] : [`events from ${format.instant(since, now)} on`]),
    ...(started_at === 0 ? [] : [`began ${format.instant(started_at, now)}`]),
    ...(request ? [] : ["because the pipeline changed"]),
    "the old rows are shown until it is ready",
  ].join(" · ");
}

function percent(share: number): string {
  return `${Math.floor(share * 100)} %`;
}

/** A strip on a view's card while it is computed anew, and for a while after. */
export class RebuildStrip {
  readonly root: HTMLElement;
  private readonly text = element("strong");
  private readonly left = element("span");
  private readonly detail = element("p", { class: "aside" });
  private readonly meter = element("div", { class: "meter", role: "progressbar", "aria-label": "Rebuilt so far" }, element("i"));

  constructor() {
    this.root = element("div", { class: "rebuild" }, element("p", {}, this.text, this.left), this.meter, this.detail);
    this.root.hidden = true;
  }

  paint(reading: RebuildReading | null): void {
    this.root.hidden = reading === null;
    if (reading === null) return;
    this.root.dataset.tone = reading.tone;
    say(this.text, reading.text);
    say(this.left, reading.left);
    say(this.detail, reading.detail);
    this.meter.hidden = reading.tone !== "warm";
    this.meter.setAttribute("aria-valuenow", String(Math.floor(reading.share * 100)));
    this.meter.style.setProperty("--share", String(reading.share));
  }
}
