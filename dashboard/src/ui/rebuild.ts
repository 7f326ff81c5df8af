import type { Rebuild } from "@millstream/client";
import { element, setText } from "./dom";
import * as format from "./format";

/** How long the end of a requested rebuild is shown. */
const SHOWN_MS = 10 * 60_000;

export interface RebuildStatus {
  readonly text: string;
  readonly left: string;
  readonly detail: string;
  readonly share: number;
  readonly tone: "good" | "warm" | "bad";
}

/** The texts about a view's rebuild; null if there is nothing to show. */
export function rebuildOf(rebuild: Rebuild | null | undefined, now: number): RebuildStatus | null {
  if (rebuild === null || rebuild === undefined) return null;
  const { state, ended_at = 0, error = "" } = rebuild;
  const isRecent = ended_at === 0 || now - ended_at < SHOWN_MS;
  const about = { left: "", detail: detailsOf(rebuild, now) };
  if (state === "failed") {
    // A changed pipeline that could not be rebuilt stays shown until it is repaired.
    if (!isRecent && rebuild.request) return null;
    const kept = "the old rows stay";
    return { ...about, text: "The rebuild failed", detail: `${error || "the reason is not known"} · ${kept}`, share: 1, tone: "bad" };
  }
  if (state === "done") {
    if (!isRecent) return null;
    const began = "a new epoch: all rows were computed again from the log";
    return { ...about, text: `Rebuilt at ${format.time(ended_at, now)}`, detail: began, share: 1, tone: "good" };
  }
  return { ...about, ...stageOf(rebuild), tone: "warm" };
}

/** A rebuild in a few words, for the box of its tier. */
export function rebuildNote(name: string, { state, done = 0, total = 0 }: Rebuild): string | null {
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
      return { text: request ? "Rebuilt, waits for confirmation" : "Rebuilt, about to take over", left: "", share: 1 };
    default:
      return { text: "Rebuilding, waits for its input views", left: "", share: 0 };
  }
}

function detailsOf({ done = 0, total = 0, since = null, started_at = 0, request }: Rebuild, now: number): string {
  return [
    ...(total === 0 ? [] : [`${format.number(done)} of ${format.number(total)} records`]),
    ...(since === null ? [] : [`events since ${format.time(since, now)}`]),
    ...(started_at === 0 ? [] : [`started ${format.time(started_at, now)}`]),
    ...(request ? [] : ["because the pipeline changed"]),
    "the old rows are shown until it is ready",
  ].join(" · ");
}

function percent(share: number): string {
  return `${Math.floor(share * 100)} %`;
}

/** The strip on a card while its view is rebuilt, and for some minutes after. */
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

  paint(status: RebuildStatus | null): void {
    this.root.hidden = status === null;
    if (status === null) return;
    this.root.dataset.tone = status.tone;
    setText(this.text, status.text);
    setText(this.left, status.left);
    setText(this.detail, status.detail);
    this.meter.hidden = status.tone !== "warm";
    this.meter.setAttribute("aria-valuenow", String(Math.floor(status.share * 100)));
    this.meter.style.setProperty("--share", String(status.share));
  }
}
