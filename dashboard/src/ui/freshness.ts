import { ROW_STATE, type System, timeOf, type ViewCounts } from "@millstream/client";
import { element, setText } from "./dom";
import * as format from "./format";

/** A smaller lag is not visible, and the counts are not more exact than that. */
const UP_TO_DATE_S = 1;

export interface LagStatus {
  readonly text: string;
  readonly tone: "good" | "warm" | "";
  readonly title: string;
}

/** How far a view is behind its inputs, and whether the lag grows or shrinks. */
export function lagOf(counts: ViewCounts | undefined): LagStatus | null {
  if (counts?.behind === undefined || counts.behind === null) return null;
  const { behind, behind_s = 0, trend = "", catch_up_s = null } = counts;
  if (behind === 0 || (behind_s < UP_TO_DATE_S && trend !== "growing")) {
    return { text: "up to date", tone: "good", title: "Every event in the log is in these rows, or will be within a second" };
  }
  const events = `${format.number(behind)} ${behind === 1 ? "event" : "events"} behind, ${format.duration(behind_s * 1_000)}`;
  const title = "Events in the log that are not in these rows yet, and the age of the oldest";
  if (trend === "growing") return { text: `${events} ▲ growing`, tone: "warm", title };
  const soon = catch_up_s === null ? "" : `, caught up in ${format.roughly(catch_up_s)}`;
  return { text: trend === "shrinking" ? `${events} ▼ shrinking${soon}` : events, tone: "", title };
}

/** The watermark of a view in milliseconds; null if it has no windows or no watermark yet. */
export function watermarkOf(system: System, name: string): number | null {
  const view = system.views.find((each) => each.name === name);
  return view?.columns.some((column) => column.name === ROW_STATE) === true ? timeOf(view.watermark ?? undefined) : null;
}

/** The line on a card with its watermark and its lag. */
export class Freshness {
  readonly root: HTMLElement;
  private readonly watermark = element("span", { class: "watermark" });
  private readonly lag = element("span", { class: "behind" });

  constructor() {
    this.root = element("p", { class: "freshness" }, this.lag, this.watermark);
  }

  paint(lag: LagStatus | null, watermark: number | null, now: number): void {
    setText(this.lag, lag?.text ?? "");
    this.lag.dataset.tone = lag?.tone ?? "";
    this.lag.title = lag?.title ?? "";
    const ago = watermark === null ? 0 : Math.max(0, now - watermark);
    setText(this.watermark, watermark === null ? "" : `final until ${format.time(watermark, now)}, ${format.duration(ago)} ago`);
    this.watermark.title = "The watermark: windows that ended before are final, later ones are provisional";
    this.root.hidden = lag === null && watermark === null;
  }
}
