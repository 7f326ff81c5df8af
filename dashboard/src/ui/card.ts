import type { Connection } from "../net/connection";
import type { Message, Row, System, ViewDescription } from "../net/protocol";
import { pictureFor, type Picture } from "../pictures";
import { isIdentifier, kindOf, numberOf, STATE, type Kind } from "../state/columns";
import { shapeOf } from "../state/shape";
import type { Store } from "../state/store";
import { Subscription } from "../state/subscription";
import { element, say } from "./dom";
import { FilterBox } from "./filter";
import * as format from "./format";
import type { Painter, Part } from "./painter";
import { RebuildStrip, rebuildOf } from "./rebuild";
import { lagOf, Standing, watermarkOf } from "./standing";
import { LiveTable } from "./table";

const PAINT_EVERY_MS = 200;
const DESCRIBE_EVERY_MS = 5_000;

/** What a card is on the wall: a map of places with a number each is smaller than one of events. */
export type Role = "map" | "race" | "timeline" | "bubbles" | "bars" | "none";
const FEW_ROWS: Readonly<Record<Role, number>> = { map: 8, race: 5, timeline: 8, bubbles: 8, bars: 8, none: 12 };

export function roleOf(view: ViewDescription): Role {
  const shape = shapeOf(view);
  return shape.kind === "map" && shape.measures.length > 0 ? "bubbles" : shape.kind;
}

/** What a card needs of the page around it. */
export interface Surroundings {
  readonly app: string;
  readonly connection: Connection;
  readonly store: Promise<Store | null>;
  readonly painter: Painter;
  readonly serverNow: () => number;
  readonly onLag: (view: string, behind: number) => void;
}

/** One view: its drawing, its rows, its filter, and how it is kept. */
export class Card {
  readonly root: HTMLElement;
  readonly subscription: Subscription;
  private readonly table: LiveTable;
  private readonly filter: FilterBox;
  private readonly frame = element("div", { class: "picture", role: "img" });
  private readonly empty = element("p", { class: "empty" }, "No rows yet. They appear here as events arrive.");
  private readonly facts = element("p", { class: "facts" });
  private readonly standing = new Standing();
  private readonly rebuild = new RebuildStrip();
  private readonly trouble = element("p", { class: "problem" });
  private readonly part: Part;
  private picture: Picture | null = null;
  private describedAt = 0;
  private suggested = false;

  constructor(
    readonly view: ViewDescription,
    private readonly around: Surroundings,
  ) {
    const shape = shapeOf(view);
    this.part = around.painter.add((now) => {
      this.paint(now);
    }, PAINT_EVERY_MS);
    const drawnAlready = shape.kind === "map" ? [shape.lat, shape.lon] : [];
    this.table = new LiveTable(view, this.part.ask, drawnAlready, FEW_ROWS[roleOf(view)]);
    this.filter = new FilterBox(view.name, (where) => {
      this.subscription.filter(where);
    });
    this.root = element(
      "article",
      { class: "card", "data-role": roleOf(view), "aria-labelledby": `view-${view.name}`, "data-view": view.name },
      this.head(),
      this.trouble,
      this.rebuild.root,
      this.picker("measures" in shape ? shape.measures : []),
      this.frame,
      this.empty,
      this.table.root,
      this.filter.root,
    );
    this.frame.hidden = shape.kind !== "map";
    this.subscription = this.follow();
    void pictureFor(shape, around.serverNow).then((picture) => {
      this.picture = picture;
      if (picture !== null) this.frame.append(picture.root);
      this.part.ask();
    });
  }

  receive(message: Message): void {
    this.subscription.receive(message);
  }

  stop(): void {
    this.subscription.stop();
    this.part.stop();
    this.root.remove();
  }

  /** Takes what the tiers say about this view. */
  report(system: System): void {
    const analyzed = system.tiers.analyze.views?.[this.view.name];
    const served = system.tiers.serve.views?.[this.view.name];
    const latency = served?.analyze_ms ?? analyzed?.analyze_ms ?? null;
    const rows = this.subscription.rows.entries.size;
    const parts = [
      this.view.key === null ? `newest ${format.number(rows)}` : `${format.number(rows)} ${rows === 1 ? "row" : "rows"}`,
      `${format.rate(served?.rate ?? analyzed?.rate ?? 0)} changes/s`,
      ...(latency === null ? [] : [format.duration(latency.p50)]),
    ];
    say(this.facts, parts.join("  ·  "));
    const now = this.around.serverNow();
    this.standing.paint(lagOf(analyzed), watermarkOf(system, this.view.name), now);
    this.rebuild.paint(rebuildOf(analyzed?.rebuild, now));
    const failing = analyzed !== undefined && ["failed", "restarting"].includes(analyzed.state ?? "");
    say(this.trouble, failing ? `The query is ${analyzed.state ?? ""}${analyzed.error ? `: ${analyzed.error}` : ""}` : "");
  }

  private follow(): Subscription {
    const { app, connection, store, onLag } = this.around;
    const watcher = {
      onRows: this.part.ask,
      onFilter: (where: string, error: string | null): void => {
        this.filter.show(where, error);
      },
      onLag: (behind: number): void => {
        onLag(this.view.name, behind);
      },
    };
    return new Subscription(this.view.name, connection, store, watcher, `millstream.where.${app}.${this.view.name}`);
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
    return element("div", { class: "card-head" }, title, element("code", {}, this.view.name), badge, this.facts, this.standing.root);
  }

  /** Where a view has several numbers, the reader says which one is drawn. */
  private picker(measures: readonly string[]): HTMLElement | null {
    if (measures.length < 2) return null;
    const choices = measures.map((measure, index) => {
      const input = element("input", { type: "radio", name: `measure-${this.view.name}`, value: measure });
      input.checked = index === 0;
      input.addEventListener("change", () => {
        if (this.picture !== null) this.picture.measure = measure;
        this.part.ask();
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
    this.empty.hidden = !none;
    // An empty map is still a picture; empty bars are a hole in the page.
    this.frame.hidden = this.picture === null || (none && !this.picture.standsEmpty);
    this.table.root.hidden = none;
    this.table.paint(rows);
    this.suggest();
    if (this.picture === null) return;
    this.picture.paint(rows, now);
    if (now - this.describedAt < DESCRIBE_EVERY_MS && this.describedAt !== 0) return;
    this.describedAt = now;
    this.frame.setAttribute("aria-label", `${titleOf(this.view.name)}. ${this.picture.describe()}`);
  }
}

/** A name as a person would write it: trending_topics → Trending topics. */
export function titleOf(name: string): string {
  const words = name.replaceAll(/[_-]+/g, " ").trim();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** A filter for the first row there is, with a number if the view has one that is counted. */
function example(view: ViewDescription, row: Row): string {
  const found = (kind: Kind): string | undefined =>
    view.columns.find((c) => kindOf(c) === kind && !isIdentifier(c.name) && c.name !== STATE)?.name;
  const count = view.key === null ? undefined : found("number");
  if (count !== undefined) return `${count} > ${Math.floor((numberOf(row[count]) ?? 0) / 2)}`;
  const text = found("text");
  if (text === undefined) return "a condition in SQL";
  const value = row[text];
  return `${text} = '${typeof value === "string" ? value.replaceAll("'", "''") : ""}'`;
}
