import { Client, type System, type ViewDescription } from "@millstream/client";
import { IndexedDbStore } from "../state/indexeddb-store";
import { Card, roleOf, type Role } from "./card";
import { element, setText } from "./dom";
import { EventTimes } from "./event-times";
import { Header } from "./header";
import { Intake } from "./intake";
import { PaintScheduler } from "./paint-scheduler";
import { QueryBox } from "./query";
import { warningsOf } from "./tier-status";
import { Tiers } from "./tiers";

const SAVE_EVERY_MS = 1_000;
/** Large charts come first, then numbers, then plain rows. */
const ORDER: readonly Role[] = ["map", "race", "timeline", "bars", "bubbles", "none"];

/** The whole page. It reads the server's description each second and follows each view. */
export class Page {
  private readonly announcement = element("p", { class: "unseen", role: "status", "aria-live": "polite" });
  private readonly banner = element("p", { class: "banner", role: "alert" });
  private readonly header = new Header((text) => {
    setText(this.announcement, text);
  });
  private readonly tiers = new Tiers();
  private readonly intake = new Intake();
  private readonly times = new EventTimes();
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

  constructor(body: HTMLElement) {
    this.client = new Client(location.href, {
      onState: (state) => {
        this.header.setConnection(state);
      },
      onProblem: (reason) => {
        setText(this.banner, reason);
      },
    });
    this.queryBox = new QueryBox(this.client);
    const views = element("section", { id: "views", tabindex: "-1", "aria-label": "Views" }, this.waiting, this.grid);
    body.replaceChildren(
      element("a", { class: "skip", href: "#views" }, "Skip to the views"),
      element("a", { class: "skip", href: "#sql" }, "Skip to the query"),
      this.header.root,
      this.banner,
      element("main", {}, this.tiers.root, this.intake.root, this.times.root, views, this.queryBox.root),
      this.announcement,
    );
    setText(this.waiting, "Waiting for the server …");
  }

  open(): void {
    this.client.open();
    this.client.watchSystem((system) => {
      this.update(system);
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
    this.showWarnings(system);
    if (system === null) return;
    this.clockOffset = Date.parse(system.now) - Date.now();
    this.followViews(system);
    for (const { card } of this.cards.values()) card.update(system);
  }

  /** Adds cards for new views, removes those of deleted views, and replaces those of changed views. */
  private followViews(system: System): void {
    if (system.app !== this.app) {
      this.app = system.app;
      // Without IndexedDB (a private window, a full disk) each load starts with a snapshot.
      this.store = IndexedDbStore.open(system.app).catch(() => null);
    }
    const definitions = new Map(system.views.map((view) => [view.name, JSON.stringify([view.key, view.columns, view.mode])]));
    const before = this.cards.size;
    for (const [name, { card, definition }] of this.cards) {
      if (definitions.get(name) === definition) continue;
      card.stop();
      this.cards.delete(name);
    }
    const added = system.views.filter((view) => !this.cards.has(view.name));
    for (const view of added) this.follow(view, definitions.get(view.name) ?? "");
    if (added.length > 0 || before !== this.cards.size) this.queryBox.offer(system.views);
    this.waiting.hidden = system.views.length > 0;
    setText(this.waiting, "No views yet. They appear here when analyze has started their queries.");
  }

  private follow(view: ViewDescription, definition: string): void {
    const card = new Card(view, {
      app: this.app,
      client: this.client,
      store: this.store,
      scheduler: this.scheduler,
      serverNow: () => Date.now() + this.clockOffset,
      onLag: (name, behind) => {
        this.header.setLag(name, behind);
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

  private showWarnings(system: System | null): void {
    const warnings = warningsOf(system);
    setText(this.banner, warnings);
    if (warnings === "" && this.warnings !== "") setText(this.announcement, "All tiers are up again.");
    this.warnings = warnings;
  }
}
