import type { Connection } from "../net/connection";
import type { Message, System, ViewDescription } from "../net/protocol";
import { pictureFor, type Picture } from "../pictures";
import { kindOf } from "../state/columns";
import { shapeOf } from "../state/shape";
import type { Store } from "../state/store";
import { Subscription } from "../state/subscription";
import { element, say } from "./dom";
import { FilterBox } from "./filter";
import * as format from "./format";
import type { Painter, Part } from "./painter";
import { LiveTable } from "./table";

const PAINT_EVERY_MS = 200;
const DESCRIBE_EVERY_MS = 5_000;

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
  private readonly trouble = element("p", { class: "problem" });
  private readonly part: Part;
  private picture: Picture | null = null;
  private describedAt = 0;

  constructor(
    readonly view: ViewDescription,
    private readonly around: Surroundings,
  ) {
    const shape = shapeOf(view);
    this.part = around.painter.add((now) => {
      this.paint(now);
    }, PAINT_EVERY_MS);
    const drawnAlready = shape.kind === "map" ? [shape.lat, shape.lon] : [];
    this.table = new LiveTable(view, this.part.ask, drawnAlready, shape.kind === "race" ? 5 : 8);
    this.filter = new FilterBox(view.name, example(view), (where) => {
      this.subscription.filter(where);
    });
    this.root = element(
      "article",
      { class: `card ${shape.kind}`, "aria-labelledby": `view-${view.name}`, "data-view": view.name },
      this.head(),
      this.trouble,
      this.frame,
      this.empty,
      this.table.root,
      this.filter.root,
    );
    this.frame.hidden = shape.kind === "none";
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
    const realTime = this.view.mode === "real_time";
    const tip = `tip-${this.view.name}`;
    const badge = element(
      "span",
      { class: "hint" },
      element(
        "button",
        { type: "button", class: `badge ${realTime ? "real-time" : "micro-batch"}`, "aria-describedby": tip },
        realTime ? "real-time" : "micro-batch",
      ),
      element("span", { class: "tip", id: tip, role: "tooltip" }, this.view.reason),
    );
    const title = element("h3", { id: `view-${this.view.name}` }, titleOf(this.view.name));
    if (this.view.description) title.title = this.view.description;
    return element("div", { class: "card-head" }, title, element("code", {}, this.view.name), badge, this.facts);
  }

  private paint(now: number): void {
    const { rows } = this.subscription;
    const none = rows.entries.size === 0;
    this.empty.hidden = !none;
    this.table.root.hidden = none;
    this.table.paint(rows);
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

function example(view: ViewDescription): string {
  const text = view.columns.find((column) => kindOf(column) === "text");
  const count = view.columns.find((column) => kindOf(column) === "number");
  if (count !== undefined) return `${count.name} > 10`;
  return text === undefined ? "a condition in SQL" : `${text.name} = '…'`;
}
