import type { System, ViewCounts } from "../net/protocol";
import { instantOf, STATE } from "../state/columns";
import { element, say } from "./dom";
import * as format from "./format";

/** Below that nobody can see that a view is behind, and the counts are no more exact. */
const AT_ONCE_S = 1;

export interface LagReading {
  readonly text: string;
  readonly tone: "good" | "warm" | "";
  readonly title: string;
}

/** How far a view is behind its inputs, and whether it is getting better. */
export function lagOf(counts: ViewCounts | undefined): LagReading | null {
  if (counts?.behind === undefined || counts.behind === null) return null;
  const { behind, behind_s = 0, trend = "", catch_up_s = null } = counts;
  if (behind === 0 || (behind_s < AT_ONCE_S && trend !== "growing")) {
    return { text: "up to date", tone: "good", title: "Every event that is in the log is in these rows, or in milliseconds" };
  }
  const events = `${format.number(behind)} ${behind === 1 ? "event" : "events"} behind, ${format.duration(behind_s * 1_000)}`;
  const title = "Events in the log that are not in these rows yet, and the age of the oldest";
  if (trend === "growing") return { text: `${events} ▲ growing`, tone: "warm", title };
  const soon = catch_up_s === null ? "" : `, caught up in ${format.roughly(catch_up_s)}`;
  return { text: trend === "shrinking" ? `${events} ▼ shrinking${soon}` : events, tone: "", title };
}

/** Until when the windows of a view are final, in milliseconds; null if it has none, or is not known. */
export function watermarkOf(system: System, name: string): number | null {
  const view = system.views.find((each) => each.name === name);
  return view?.columns.some((column) => column.name === STATE) === true ? instantOf(view.watermark ?? undefined) : null;
}

/** One line on a card: up to when its windows are final, and how far it is behind. */
export class Standing {
  readonly root: HTMLElement;
  private readonly watermark = element("span", { class: "watermark" });
  private readonly lag = element("span", { class: "behind" });

  constructor() {
    this.root = element("p", { class: "standing" }, this.lag, this.watermark);
  }

  paint(lag: LagReading | null, watermark: number | null, now: number): void {
    say(this.lag, lag?.text ?? "");
    this.lag.dataset.tone = lag?.tone ?? "";
    this.lag.title = lag?.title ?? "";
    const ago = watermark === null ? 0 : Math.max(0, now - watermark);
    say(this.watermark, watermark === null ? "" : `final until ${format.instant(watermark, now)}, ${format.duration(ago)} ago`);
    this.watermark.title = "The watermark: windows that ended by then are final, later ones provisional";
    this.root.hidden = lag === null && watermark === null;
  }
}
