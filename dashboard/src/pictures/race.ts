import { labelOf, numberOf, spanOf, type Span } from "../state/columns";
import type { Entry, Rows } from "../state/rows";
import { currentWindow } from "../state/windows";
import { element, say } from "../ui/dom";
import * as format from "../ui/format";
import type { Picture } from "./picture";
import { hueOf, lanes, type Lane, type Runner } from "./race-layout";

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

/** Bars that overtake each other: the largest of the current window, or of the whole view. */
export class Race implements Picture {
  readonly root: HTMLElement;
  readonly standsEmpty = false;
  private readonly list = element("ol", { class: "race" });
  private readonly title = element("p", { class: "race-window" });
  private readonly bars = new Map<string, Bar>();
  private ranks = new Map<string, number>();
  private leaders: readonly Lane[] = [];

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
      const current = currentWindow(distinctSpans(rows, window), this.serverNow());
      say(this.title, current === null ? "" : format.span(current));
      entries = [...entries].filter((entry) => sameSpan(spanOf(entry.row[window]), current));
    }
    this.leaders = lanes(this.runners(entries), this.ranks, this.count);
    this.ranks = new Map(this.leaders.map((lane) => [lane.id, lane.rank]));
    for (const lane of this.leaders) this.place(lane);
    for (const [id, bar] of this.bars) {
      if (!this.ranks.has(id)) this.leave(id, bar);
    }
  }

  describe(): string {
    const leading = this.leaders.slice(0, 5).map((lane) => `${lane.label} ${format.number(lane.value)}`);
    return leading.length === 0 ? "No bars yet." : `Leading: ${leading.join(", ")}.`;
  }

  private *runners(entries: Iterable<Entry>): Iterable<Runner> {
    for (const { row } of entries) {
      const value = numberOf(row[this.measure]);
      const label = labelOf(row, this.choice.label);
      // The label alone identifies a bar: in the next window it is the same runner that goes on.
      if (value !== null) yield { id: label, label, value };
    }
  }

  private place(lane: Lane): void {
    const bar = this.bars.get(lane.id) ?? this.enter(lane);
    bar.root.style.transform = `translateY(${lane.rank * 100}%)`;
    bar.root.classList.remove("leaving");
    bar.fill.style.transform = `scaleX(${Math.max(lane.share, 0.004)})`;
    say(bar.value, format.number(lane.value));
  }

  private enter(lane: Lane): Bar {
    const fill = element("span", { class: "race-fill" });
    const value = element("span", { class: "race-value" });
    const label = element("span", { class: "race-label", title: lane.label }, lane.label);
    const root = element("li", { class: `hue-${hueOf(lane.label, HUES)}` }, fill, label, value);
    root.style.transform = `translateY(${this.count * 100}%)`;
    fill.style.transform = "scaleX(0)";
    this.list.append(root);
    // The browser must have seen the start before it can glide to the place.
    root.getBoundingClientRect();
    const bar = { root, fill, value };
    this.bars.set(lane.id, bar);
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

function distinctSpans(rows: Rows, window: string): Iterable<Span> {
  const spans = new Map<string, Span>();
  for (const { row } of rows.entries.values()) {
    const span = spanOf(row[window]);
    if (span !== null) spans.set(`${span.start}/${span.end}`, span);
  }
  return spans.values();
}

function sameSpan(a: Span | null, b: Span | null): boolean {
  return a !== null && b !== null && a.start === b.start && a.end === b.end;
}
