import { Connection } from "../net/connection";
import { watchSystem } from "../net/http";
import { explain, type Message, type System, type ViewDescription } from "../net/protocol";
import { Store } from "../state/store";
import { Card, roleOf, type Role } from "./card";
import { element, say } from "./dom";
import { EventTimes } from "./event-times";
import { Header } from "./header";
import { Intake } from "./intake";
import { Painter } from "./painter";
import { QueryBox } from "./query";
import { troublesOf } from "./readings";
import { Tiers } from "./tiers";

const SAVE_EVERY_MS = 1_000;
/** The drawings for the wall come first, then numbers, then plain rows. */
const ORDER: readonly Role[] = ["map", "race", "timeline", "bars", "bubbles", "none"];

/** The whole page: it learns what there is from the server's description and follows each view. */
export class Page {
  private readonly live = element("p", { class: "unseen", role: "status", "aria-live": "polite" });
  private readonly banner = element("p", { class: "banner", role: "alert" });
  private readonly header = new Header((text) => {
    say(this.live, text);
  });
  private readonly tiers = new Tiers();
  private readonly intake = new Intake();
  private readonly times = new EventTimes();
  private readonly waiting = element("p", { class: "waiting" });
  private readonly grid = element("div", { class: "grid" });
  private readonly queryBox = new QueryBox();
  private readonly painter = new Painter();
  private readonly cards = new Map<string, { readonly card: Card; readonly shape: string }>();
  private readonly connection: Connection;
  private store: Promise<Store | null> = Promise.resolve(null);
  private app = "";
  private clockOffset = 0;
  private troubles = "";

  constructor(body: HTMLElement) {
    const url = new URL("v1/connect", location.href);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    this.connection = new Connection(
      url.href,
      (message) => {
        this.receive(message);
      },
      (state) => {
        this.header.setLink(state);
      },
    );
    const views = element("section", { id: "views", tabindex: "-1", "aria-label": "Views" }, this.waiting, this.grid);
    body.replaceChildren(
      element("a", { class: "skip", href: "#views" }, "Skip to the views"),
      element("a", { class: "skip", href: "#sql" }, "Skip to the query"),
      this.header.root,
      this.banner,
      element("main", {}, this.tiers.root, this.intake.root, this.times.root, views, this.queryBox.root),
      this.live,
    );
    say(this.waiting, "Waiting for the server …");
  }

  open(): void {
    this.connection.open();
    watchSystem((system) => {
      this.update(system);
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
    this.tellTroubles(system);
    if (system === null) return;
    this.clockOffset = Date.parse(system.now) - Date.now();
    this.followViews(system);
    for (const { card } of this.cards.values()) card.report(system);
  }

  /** Cards follow the description: new views come, gone ones go, changed ones start anew. */
  private followViews(system: System): void {
    if (system.app !== this.app) {
      this.app = system.app;
      // Without storage (a private window, a full disk) each load starts with a snapshot.
      this.store = Store.open(system.app).catch(() => null);
    }
    const shapes = new Map(system.views.map((view) => [view.name, JSON.stringify([view.key, view.columns, view.mode])]));
    const before = this.cards.size;
    for (const [name, { card, shape }] of this.cards) {
      if (shapes.get(name) === shape) continue;
      card.stop();
      this.cards.delete(name);
    }
    const fresh = system.views.filter((view) => !this.cards.has(view.name));
    for (const view of fresh) this.follow(view, shapes.get(view.name) ?? "");
    if (fresh.length > 0 || before !== this.cards.size) this.queryBox.offer(system.views);
    this.waiting.hidden = system.views.length > 0;
    say(this.waiting, "No views yet. They appear here when analyze has started their queries.");
  }

  private follow(view: ViewDescription, shape: string): void {
    const card = new Card(view, {
      app: this.app,
      connection: this.connection,
      store: this.store,
      painter: this.painter,
      serverNow: () => Date.now() + this.clockOffset,
      onLag: (name, behind) => {
        this.header.setLag(name, behind);
      },
    });
    this.cards.set(view.name, { card, shape });
    const rank = ORDER.indexOf(roleOf(view));
    card.root.dataset.rank = String(rank);
    const after = [...this.grid.children].find((other) => Number((other as HTMLElement).dataset.rank) > rank);
    this.grid.insertBefore(card.root, after ?? null);
    void card.subscription.start();
  }

  private receive(message: Message): void {
    if ("id" in message && typeof message.id === "string") {
      this.cards.get(message.id)?.card.receive(message);
    } else if (message.type === "error") {
      say(this.banner, explain(message));
    }
  }

  private save(): void {
    // What could not be written now is written a second later, whole.
    for (const { card } of this.cards.values()) void card.subscription.save().catch(() => undefined);
  }

  private tellTroubles(system: System | null): void {
    const troubles = troublesOf(system);
    say(this.banner, troubles);
    if (troubles === "" && this.troubles !== "") say(this.live, "All tiers are up again.");
    this.troubles = troubles;
  }
}
