import { type Entry, numberOf, type Rows, type TimeWindow, timeWindowOf } from "@millstream/client";
import { element, setText } from "../ui/dom";
import * as format from "../ui/format";
import type { Chart } from "./chart";
import { currentWindow } from "./current-window";
import { labelOf } from "./label";
import { hueOf, rankItems, type RankedItem, type Item } from "./ranking";

const HUES = 6;

interface Bar {
  readonly root: HTMLLIElement;
  readonly fill: HTMLElement;
  readonly value: HTMLElement;
}

interface Choice {
  readonly window: string | null;
  readonly label: readonly string[];
}

/** A bar chart race: the largest items of the current window, or of the whole view. */
export class BarRace implements Chart {
  readonly root: HTMLElement;
  readonly visibleWhenEmpty = false;
  private readonly list = element("ol", { class: "race" });
  private readonly title = element("p", { class: "race-window" });
  private readonly bars = new Map<string, Bar>();
  private ranks = new Map<string, number>();
  private leaders: readonly RankedItem[] = [];

  constructor(
    private readonly choice: Choice,
    public measure: string,
    private readonly count: number,
    private readonly serverNow: () => number,
  ) {
    this.root = element("div", { class: "race-frame" }, this.title, this.list);
    this.root.style.setProperty("--lanes", String(count));
    this.title.hidden = choice.window === null;
  }

  paint(rows: Rows): void {
    const { window } = this.choice;
    let entries: Iterable<Entry> = rows.entries.values();
    if (window !== null) {
      const current = currentWindow(distinctWindows(rows, window), this.serverNow());
      setText(this.title, current === null ? "" : format.timeWindow(current));
      entries = [...entries].filter((entry) => sameWindow(timeWindowOf(entry.row[window]), current));
    }
    this.leaders = rankItems(this.items(entries), this.ranks, this.count);
    this.ranks = new Map(this.leaders.map((item) => [item.id, item.rank]));
    for (const item of this.leaders) this.place(item);
    for (const [id, bar] of this.bars) {
      if (!this.ranks.has(id)) this.leave(id, bar);
    }
  }

  describe(): string {
    const leading = this.leaders.slice(0, 5).map((item) => `${item.label} ${format.number(item.value)}`);
    return leading.length === 0 ? "No bars yet." : `Leading: ${leading.join(", ")}.`;
  }

  private *items(entries: Iterable<Entry>): Iterable<Item> {
    for (const { row } of entries) {
      const value = numberOf(row[this.measure]);
      const label = labelOf(row, this.choice.label);
      // The label alone identifies a bar, so that the bar continues in the next window.
      if (value !== null) yield { id: label, label, value };
    }
  }

  private place(item: RankedItem): void {
    const bar = this.bars.get(item.id) ?? this.enter(item);
    bar.root.style.transform = `translateY(${item.rank * 100}%)`;
    bar.root.classList.remove("leaving");
    bar.fill.style.transform = `scaleX(${Math.max(item.share, 0.004)})`;
    setText(bar.value, format.number(item.value));
  }

  private enter(item: RankedItem): Bar {
    const fill = element("span", { class: "race-fill" });
    const value = element("span", { class: "race-value" });
    const label = element("span", { class: "race-label", title: item.label }, item.label);
    const root = element("li", { class: `hue-${hueOf(item.label, HUES)}` }, fill, label, value);
    root.style.transform = `translateY(${this.count * 100}%)`;
    fill.style.transform = "scaleX(0)";
    this.list.append(root);
    // Forces a layout: without a start position the browser would not animate the move.
    root.getBoundingClientRect();
    const bar = { root, fill, value };
    this.bars.set(item.id, bar);
    return bar;
  }

  private leave(id: string, bar: Bar): void {
    this.bars.delete(id);
    bar.root.classList.add("leaving");
    bar.root.style.transform = `translateY(${this.count * 100}%)`;
    setTimeout(() => {
      bar.root.remove();
    }, 700);
  }
}

function distinctWindows(rows: Rows, window: string): Iterable<TimeWindow> {
  const windows = new Map<string, TimeWindow>();
  for (const { row } of rows.entries.values()) {
    const found = timeWindowOf(row[window]);
    if (found !== null) windows.set(`${found.start}/${found.end}`, found);
  }
  return windows.values();
}

function sameWindow(a: TimeWindow | null, b: TimeWindow | null): boolean {
  return a !== null && b !== null && a.start === b.start && a.end === b.end;
}
