import {
  isIdentifier,
  kindOf,
  MAX_ROWS,
  numberOf,
  ROW_STATE,
  type Client,
  type Kind,
  type Lag,
  type Row,
  type Rows,
  type Subscription,
  type System,
  type ViewDescription,
} from "@millstream/client";
import { chartFor, type Chart } from "../charts";
import { chooseChart } from "../charts/chart-choice";
import { FilterMemory } from "../state/filter-memory";
import type { IndexedDbStore } from "../state/indexeddb-store";
import { element, setText } from "./dom";
import { FilterBox } from "./filter";
import * as format from "./format";
import type { PaintScheduler, Part } from "./paint-scheduler";
import { RebuildStrip, rebuildOf } from "./rebuild";
import { lagOf, Freshness, watermarkOf } from "./freshness";
import { LiveTable } from "./table";

const PAINT_EVERY_MS = 200;
const DESCRIBE_EVERY_MS = 5_000;

/** The kind of a card, which decides its size and place. `bubbles` is a map of places with a number each. */
export type Role = "map" | "race" | "timeline" | "bubbles" | "bars" | "none";
const FEW_ROWS: Readonly<Record<Role, number>> = { map: 8, race: 5, timeline: 8, bubbles: 8, bars: 8, none: 12 };

export function roleOf(view: ViewDescription): Role {
  const shape = chooseChart(view);
  return shape.kind === "map" && shape.measures.length > 0 ? "bubbles" : shape.kind;
}

/** The parts of the page that a card uses. */
export interface CardContext {
  readonly app: string;
  readonly client: Client;
  readonly store: Promise<IndexedDbStore | null>;
  readonly scheduler: PaintScheduler;
  readonly serverNow: () => number;
  /** Keeps the filters: that of the tab if there is a login. */
  readonly filters: Storage;
  readonly onLag: (view: string, lag: Lag) => void;
}

/** One view: its chart, its rows, its filter and its state. */
export class Card {
  readonly root: HTMLElement;
  readonly subscription: Subscription;
  private readonly table: LiveTable;
  private readonly filter: FilterBox;
  private readonly frame = element("div", { class: "picture", role: "img" });
  private readonly empty = element("p", { class: "empty" }, "No rows yet. They appear here as events arrive.");
  private readonly facts = element("p", { class: "facts" });
  private readonly freshness = new Freshness();
  private readonly rebuild = new RebuildStrip();
  private readonly problem = element("p", { class: "problem" });
  private readonly part: Part;
  private chart: Chart | null = null;
  private describedAt = 0;
  private suggested = false;

  constructor(
    readonly view: ViewDescription,
    private readonly context: CardContext,
  ) {
    const shape = chooseChart(view);
    this.part = context.scheduler.add((now) => {
      this.paint(now);
    }, PAINT_EVERY_MS);
    const shownInChart = shape.kind === "map" ? [shape.lat, shape.lon] : [];
    this.table = new LiveTable(view, this.part.requestPaint, shownInChart, FEW_ROWS[roleOf(view)]);
    this.filter = new FilterBox(view.name, (where) => {
      this.subscription.filter(where);
    });
    this.root = element(
      "article",
      { class: "card", "data-role": roleOf(view), "aria-labelledby": `view-${view.name}`, "data-view": view.name },
      this.head(),
      this.problem,
      this.rebuild.root,
      this.picker("measures" in shape ? shape.measures : []),
      this.frame,
      this.empty,
      this.table.root,
      this.filter.root,
    );
    this.frame.hidden = shape.kind !== "map";
    this.subscription = this.follow();
    void chartFor(shape, context.serverNow).then((chart) => {
      this.chart = chart;
      if (chart !== null) this.frame.append(chart.root);
      this.part.requestPaint();
    });
  }

  stop(): void {
    this.subscription.stop();
    this.part.stop();
    this.root.remove();
  }

  /** Shows the state that the tiers report for this view; `null` if the reader may not see it. */
  update(system: System | null): void {
    const rows = this.subscription.rows.entries.size;
    const count = this.view.key === null ? `newest ${format.number(rows)}` : `${format.number(rows)} ${rows === 1 ? "row" : "rows"}`;
    if (system === null) setText(this.facts, count);
    else this.describe(system, count);
  }

  private describe(system: System, count: string): void {
    const analyzed = system.tiers.analyze.views?.[this.view.name];
    const served = system.tiers.serve.views?.[this.view.name];
    const latency = served?.analyze_ms ?? analyzed?.analyze_ms ?? null;
    const parts = [
      count,
      `${format.rate(served?.rate ?? analyzed?.rate ?? 0)} changes/s`,
      ...(latency === null ? [] : [format.duration(latency.p50)]),
    ];
    setText(this.facts, parts.join("  ·  "));
    const now = this.context.serverNow();
    this.freshness.paint(lagOf(analyzed), watermarkOf(system, this.view.name), now);
    this.rebuild.paint(rebuildOf(analyzed?.rebuild, now));
    const failing = analyzed !== undefined && ["failed", "restarting"].includes(analyzed.state ?? "");
    setText(this.problem, failing ? `The query is ${analyzed.state ?? ""}${analyzed.error ? `: ${analyzed.error}` : ""}` : "");
  }

  private follow(): Subscription {
    const { app, client, store, filters, onLag } = this.context;
    const memory = new FilterMemory(app, this.view.name, filters);
    return client.follow(this.view.name, {
      where: memory.load(),
      // The server need not send rows that are not held. Of a view without a key it sends the newest ones anyway.
      ...(this.view.key === null ? {} : { limit: MAX_ROWS }),
      store,
      onRows: this.part.requestPaint,
      onFilter: (where, error) => {
        if (error === null) memory.save(where);
        this.filter.show(where, error);
      },
      onLag: (lag) => {
        onLag(this.view.name, lag);
      },
    });
  }

  private head(): HTMLElement {
    const mode = { real_time: "real-time", micro_batch: "micro-batch" }[this.view.mode ?? ""] ?? "not started";
    const tip = `tip-${this.view.name}`;
    const badge = element(
      "span",
      { class: "hint" },
      element(
        "button",
        { type: "button", class: `badge ${mode.replace(" ", "-")}`, "aria-describedby": tip },
        mode,
      ),
      element("span", { class: "tip", id: tip, role: "tooltip" }, this.view.reason),
    );
    const title = element("h3", { id: `view-${this.view.name}` }, titleOf(this.view.name));
    if (this.view.description) title.title = this.view.description;
    return element("div", { class: "card-head" }, title, element("code", {}, this.view.name), badge, this.facts, this.freshness.root);
  }

  /** Lets the reader choose which number is drawn, if the view has several. */
  private picker(measures: readonly string[]): HTMLElement | null {
    if (measures.length < 2) return null;
    const choices = measures.map((measure, index) => {
      const input = element("input", { type: "radio", name: `measure-${this.view.name}`, value: measure });
      input.checked = index === 0;
      input.addEventListener("change", () => {
        if (this.chart !== null) this.chart.measure = measure;
        this.part.requestPaint();
      });
      return element("label", {}, input, element("span", {}, measure));
    });
    return element("fieldset", { class: "picker" }, element("legend", { class: "unseen" }, "Draw"), ...choices);
  }

  private suggest(): void {
    const first = this.suggested ? undefined : this.subscription.rows.entries.values().next().value;
    if (first === undefined) return;
    this.suggested = true;
    this.filter.suggest(example(this.view, first.row));
  }

  private paint(now: number): void {
    const { rows } = this.subscription;
    const none = rows.entries.size === 0;
    this.empty.hidden = !none && rows.loading === null;
    setText(this.empty, emptyText(rows));
    // An empty map is worth showing; empty bars would leave a hole in the page.
    this.frame.hidden = this.chart === null || (none && !this.chart.visibleWhenEmpty);
    this.table.root.hidden = none;
    this.table.paint(rows);
    this.suggest();
    if (this.chart === null) return;
    this.chart.paint(rows, now);
    if (now - this.describedAt < DESCRIBE_EVERY_MS && this.describedAt !== 0) return;
    this.describedAt = now;
    this.frame.setAttribute("aria-label", `${titleOf(this.view.name)}. ${this.chart.describe()}`);
  }
}

/** What a card says instead of rows. A large view arrives in pages, and its rows are shown with the last one. */
function emptyText({ loading }: Rows): string {
  if (loading === null) return "No rows yet. They appear here as events arrive.";
  const total = loading.total === null ? "" : ` of ${format.number(Math.min(loading.total, MAX_ROWS))}`;
  return `Loading ${format.number(loading.received)}${total} rows …`;
}

/** A name as a title: trending_topics → Trending topics. */
export function titleOf(name: string): string {
  const words = name.replaceAll(/[_-]+/g, " ").trim();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** An example of a filter, made from the first row: on a number if the view has one, else on a text. */
function example(view: ViewDescription, row: Row): string {
  const found = (kind: Kind): string | undefined =>
    view.columns.find((c) => kindOf(c) === kind && !isIdentifier(c.name) && c.name !== ROW_STATE)?.name;
  const count = view.key === null ? undefined : found("number");
  if (count !== undefined) return `${count} > ${Math.floor((numberOf(row[count]) ?? 0) / 2)}`;
  const text = found("text");
  if (text === undefined) return "a condition in SQL";
  const value = row[text];
  return `${text} = '${typeof value === "string" ? value.replaceAll("'", "''") : ""}'`;
}
