import { Client, REVOKED, type ConnectionState, type System, type ViewDescription } from "@millstream/client";
import { Connections } from "../access/connections";
import { IndexedDbStore } from "../state/indexeddb-store";
import { Card, roleOf, type Role } from "./card";
import { element, setText } from "./dom";
import { EventTimes } from "./event-times";
import { sentence } from "./format";
import { Header } from "./header";
import { Intake } from "./intake";
import { PaintScheduler } from "./paint-scheduler";
import { QueryBox } from "./query";
import { warningsOf } from "./tier-status";
import { Tiers } from "./tiers";

const SAVE_EVERY_MS = 1_000;
/** Large charts come first, then numbers, then plain rows. */
const ORDER: readonly Role[] = ["map", "race", "timeline", "bars", "bubbles", "none"];

export interface PageOptions {
  /** The key or token of the reader; empty without a login. */
  readonly secret: string;
  /** The reader logs out, or the server no longer accepts the login. */
  readonly onLogout: (reason: string) => void;
}

/** The whole page. It reads the server's description each second and follows each view. */
export class Page {
  private readonly announcement = element("p", { class: "unseen", role: "status", "aria-live": "polite" });
  private readonly banner = element("p", { class: "banner", role: "alert" });
  private readonly header: Header;
  private readonly tiers = new Tiers();
  private readonly intake = new Intake();
  private readonly times = new EventTimes();
  private readonly viewsOnly = element(
    "p",
    { class: "views-only", role: "note" },
    "This login sees the views that it may read. The tiers with their rates and latencies, and the list of connections, need the right “admin”.",
  );
  private readonly connections: Connections;
  private readonly waiting = element("p", { class: "waiting" });
  private readonly grid = element("div", { class: "grid" });
  private readonly queryBox: QueryBox;
  private readonly scheduler = new PaintScheduler();
  private readonly cards = new Map<string, { readonly card: Card; readonly definition: string }>();
  private readonly client: Client;
  private store: Promise<IndexedDbStore | null> = Promise.resolve(null);
  private app = "";
  private clockOffset = 0;
  private warnings = "";
  private refusal = "";
  private stopWatchingSystem: (() => void) | null = null;

  constructor(
    body: HTMLElement,
    private readonly options: PageOptions,
  ) {
    const { secret, onLogout } = options;
    this.header = new Header(
      (text) => {
        setText(this.announcement, text);
      },
      secret === ""
        ? null
        : () => {
            onLogout("You are logged out.");
          },
    );
    this.client = new Client(location.href, {
      ...(secret === "" ? {} : { credentials: () => secret }),
      onUnauthorized: onLogout,
      onState: (state) => {
        this.setConnection(state);
      },
      onProblem: (reason) => {
        setText(this.banner, reason);
      },
    });
    this.queryBox = new QueryBox(this.client);
    this.connections = new Connections(this.client);
    this.connections.root.hidden = this.viewsOnly.hidden = true;
    const views = element("section", { id: "views", tabindex: "-1", "aria-label": "Views" }, this.waiting, this.grid);
    body.replaceChildren(
      element("a", { class: "skip", href: "#views" }, "Skip to the views"),
      element("a", { class: "skip", href: "#sql" }, "Skip to the query"),
      this.header.root,
      this.banner,
      element("main", {}, this.viewsOnly, this.tiers.root, this.intake.root, this.times.root, views, this.queryBox.root, this.connections.root),
      this.announcement,
    );
    setText(this.waiting, "Waiting for the server …");
  }

  open(): void {
    this.client.open();
    this.stopWatchingSystem = this.client.watchSystem((system, refusal) => {
      if (refusal?.status === 403) this.showViewsOnly();
      else this.update(system);
    });
    // A laptop that wakes up, or a network that is back, need not wait for the end of the backoff.
    addEventListener("online", () => {
      this.client.reconnect();
    });
    setInterval(() => {
      this.save();
    }, SAVE_EVERY_MS);
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.save();
    });
  }

  private update(system: System | null): void {
    this.header.paint(system);
    this.tiers.paint(system);
    this.intake.paint(system);
    this.times.paint(system);
    this.setWarnings(warningsOf(system));
    if (system === null) return;
    this.connections.root.hidden = false;
    this.clockOffset = Date.parse(system.now) - Date.now();
    this.followViews(system.app, system.views);
    for (const { card } of this.cards.values()) card.update(system);
  }

  /** Shows the page to a reader who may not see the system. */
  private showViewsOnly(): void {
    this.stopWatchingSystem?.();
    this.header.showViewsOnly();
    this.viewsOnly.hidden = false;
    for (const { root } of [this.tiers, this.intake, this.times]) root.hidden = true;
    this.client.watchViews((views) => {
      this.setWarnings(views === null ? warningsOf(null) : "");
      if (views !== null) this.followViews("", views);
      for (const { card } of this.cards.values()) card.update(null);
    });
  }

  private setConnection(state: ConnectionState): void {
    this.header.setConnection(state);
    this.refusal = "";
    // The login form says so of these.
    if (state.kind !== "refused" || [401, REVOKED].includes(state.code)) return;
    this.refusal = `The server ended this page's connection. ${sentence(state.reason)} Load the page again to connect.`;
    this.setWarnings(this.warnings);
  }

  /** Adds cards for new views, removes those of deleted views, and replaces those of changed views. */
  private followViews(app: string, views: readonly ViewDescription[]): void {
    if (app !== this.app) {
      this.app = app;
      // Without IndexedDB (a private window, a full disk) each load starts with a snapshot. Rows that need a login are
      // not written to disk: the next reader of this browser could see them.
      if (this.options.secret === "") this.store = IndexedDbStore.open(app).catch(() => null);
    }
    const definitions = new Map(views.map((view) => [view.name, JSON.stringify([view.key, view.columns, view.mode])]));
    const before = this.cards.size;
    for (const [name, { card, definition }] of this.cards) {
      if (definitions.get(name) === definition) continue;
      card.stop();
      this.cards.delete(name);
    }
    const added = views.filter((view) => !this.cards.has(view.name));
    for (const view of added) this.follow(view, definitions.get(view.name) ?? "");
    if (added.length > 0 || before !== this.cards.size) this.queryBox.offer(views);
    this.waiting.hidden = views.length > 0;
    setText(this.waiting, "No views yet. They appear here when analyze has started their queries.");
  }

  private follow(view: ViewDescription, definition: string): void {
    const card = new Card(view, {
      app: this.app,
      client: this.client,
      store: this.store,
      scheduler: this.scheduler,
      serverNow: () => Date.now() + this.clockOffset,
      filters: this.options.secret === "" ? localStorage : sessionStorage,
      onLag: (name, lag) => {
        this.header.setLag(name, lag);
      },
    });
    this.cards.set(view.name, { card, definition });
    const rank = ORDER.indexOf(roleOf(view));
    card.root.dataset.rank = String(rank);
    const after = [...this.grid.children].find((other) => Number((other as HTMLElement).dataset.rank) > rank);
    this.grid.insertBefore(card.root, after ?? null);
  }

  private save(): void {
    // A failed write is repeated in full a second later.
    for (const { card } of this.cards.values()) void card.subscription.save().catch(() => undefined);
  }

  private setWarnings(warnings: string): void {
    setText(this.banner, [this.refusal, warnings].filter((text) => text !== "").join(" "));
    if (warnings === "" && this.warnings !== "") setText(this.announcement, "All tiers are up again.");
    this.warnings = warnings;
  }
}
