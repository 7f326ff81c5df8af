import { numberOf, type Rows, type TimeWindow, timeWindowOf } from "@millstream/client";
import { svgElement, element, setText } from "../ui/dom";
import * as format from "../ui/format";
import type { Chart } from "./chart";

const COLUMNS = 60;
const WIDTH = 600;
const HEIGHT = 150;
const AHEAD_MS = 60_000;

interface Point {
  readonly window: TimeWindow | null;
  readonly order: number;
  readonly value: number;
  readonly slot: number;
}

/** Columns over time: one for each window, or one for each event if the view has no windows. */
export class Timeline implements Chart {
  readonly root: HTMLElement;
  readonly visibleWhenEmpty = false;
  private readonly bars: SVGRectElement[] = [];
  private readonly newest = element("strong");
  private readonly newestAt = element("span");
  private readonly most = element("span", { class: "axis" });
  private readonly from = element("span", { class: "axis" });
  private readonly to = element("span", { class: "axis" });
  private points: readonly Point[] = [];

  constructor(
    private readonly window: string | null,
    public measure: string,
    private readonly serverNow: () => number,
  ) {
    const svg = svgElement("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    for (let index = 0; index < COLUMNS; index++) {
      const bar = svgElement("rect", { class: "column", y: 0, height: 0, rx: 1.5 });
      this.bars.push(bar);
      svg.append(bar);
    }
    svg.append(svgElement("line", { class: "ground", x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 }));
    const newest = element("p", { class: "reading" }, this.newest, this.newestAt);
    const plot = element("div", { class: "plot" }, this.most, svg);
    const axis = element("div", { class: "axis-row" }, this.from, this.to);
    this.root = element("div", { class: "timeline" }, newest, plot, axis);
  }

  paint(rows: Rows): void {
    this.points = this.collect(rows);
    const most = Math.max(0, ...this.points.map((point) => point.value));
    const last = this.points.at(-1);
    const slots = Math.max((last?.slot ?? 0) + 1, 12);
    const step = WIDTH / slots;
    const offset = slots - 1 - (last?.slot ?? 0);
    this.bars.forEach((bar, index) => {
      const point = this.points[index];
      const height = point === undefined || most === 0 ? 0 : (Math.max(0, point.value) / most) * (HEIGHT - 8);
      bar.setAttribute("x", String((offset + (point?.slot ?? 0) + 0.14) * step));
      bar.setAttribute("width", String(step * 0.72));
      bar.setAttribute("y", String(HEIGHT - height));
      bar.setAttribute("height", String(height));
      // The last window is incomplete: it is marked, so that it does not look like a fall.
      bar.classList.toggle("open", this.window !== null && point !== undefined && point === last);
    });
    setText(this.newest, last === undefined ? "" : format.number(last.value));
    setText(this.newestAt, last === undefined ? "" : `${this.measure} · ${nameOf(last)}`);
    setText(this.most, most === 0 ? "" : format.brief(most));
    const [start] = this.points;
    setText(this.from, start === undefined || start === last ? "" : nameOf(start));
    // A few windows are drawn at the right: the label of the first one belongs under it.
    this.from.style.marginLeft = `${(offset / slots) * 100}%`;
    setText(this.to, last === undefined ? "" : nameOf(last));
  }

  describe(): string {
    const last = this.points.at(-1);
    if (last === undefined) return "No columns yet.";
    const most = Math.max(...this.points.map((point) => point.value));
    return `${this.points.length} columns of ${this.measure}; newest ${format.number(last.value)} (${nameOf(last)}), highest ${format.number(most)}.`;
  }

  private collect(rows: Rows): Point[] {
    const now = this.serverNow();
    const found: Omit<Point, "slot">[] = [];
    for (const { row, sequence } of rows.entries.values()) {
      const value = numberOf(row[this.measure]);
      const window = this.window === null ? null : timeWindowOf(row[this.window]);
      if (value === null || (this.window !== null && window === null)) continue;
      found.push({ window, order: window?.start ?? sequence, value });
    }
    const past = found.filter((point) => point.window === null || point.window.start <= now + AHEAD_MS);
    return assignSlots((past.length > 0 ? past : found).sort((a, b) => a.order - b.order));
  }
}

/** Gives each point its slot. A window without events leaves its slot empty. */
export function assignSlots(sorted: readonly Omit<Point, "slot">[]): Point[] {
  const last = sorted.at(-1);
  if (last === undefined) return [];
  const newest = sorted.slice(-COLUMNS);
  if (last.window === null) return newest.map((point, slot) => ({ ...point, slot }));
  let slide = Infinity;
  newest.forEach((point, index) => {
    const before = newest[index - 1];
    if (before !== undefined && point.order > before.order) slide = Math.min(slide, point.order - before.order);
  });
  const slotOf = (point: Omit<Point, "slot">): number => (slide === Infinity ? 0 : Math.round((point.order - last.order) / slide));
  const shown = newest.filter((point) => slotOf(point) > -COLUMNS);
  const start = Math.min(...shown.map(slotOf));
  return shown.map((point) => ({ ...point, slot: slotOf(point) - start }));
}

function nameOf(point: Point): string {
  return point.window === null ? "newest" : format.timeWindow(point.window);
}
