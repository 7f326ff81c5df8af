import { labelOf, numberOf } from "../state/columns";
import type { Entry, Rows } from "../state/rows";
import { element, motionReduced } from "../ui/dom";
import { ink, onTheme } from "../ui/theme";
import type { Picture } from "./picture";
import { world, type Dot, type World } from "./world";

const RING_MS = 1_500;
const GLOW_MS = 45_000;
const LABEL_MS = 2_600;
const MOST_PINGS = 90;
const MOST_GLOWS = 1_500;
const FRAME_MS = 1_000 / 30;
/** Rows reach a picture in bunches; the pings are spread over this time as the events were. */
const SPREAD_MS = 220;

interface Choice {
  readonly lat: string;
  readonly lon: string;
  readonly label: readonly string[];
}

interface Ping extends Dot {
  readonly at: number;
  readonly label: string;
}

/** A world of dots on which each change lights up where it happened. */
export class WorldMap implements Picture {
  readonly root: HTMLElement;
  readonly standsEmpty = true;
  private readonly base = element("canvas", { "aria-hidden": "true" });
  private readonly overlay = element("canvas", { "aria-hidden": "true" });
  private world: World | null = null;
  private seen = 0;
  private pings: Ping[] = [];
  private readonly glows = new Map<string, Ping>();
  private bubbles: readonly (Dot & { readonly share: number })[] = [];
  private running = false;
  private drawnAt = 0;
  private colours = { land: "", glow: "", ping: "", text: "", paper: "" };
  private rows: Rows | null = null;

  constructor(
    private readonly choice: Choice,
    public measure: string | null,
  ) {
    this.root = element("div", { class: "map" }, this.base, this.overlay);
    new ResizeObserver(() => {
      this.fit();
    }).observe(this.root);
    onTheme(() => {
      this.colours = {
        land: ink("land"),
        glow: ink("stream"),
        ping: ink("warm"),
        text: ink("text"),
        paper: ink("surface"),
      };
      this.drawBase();
      this.wake();
    });
  }

  paint(rows: Rows, now: number): void {
    this.rows = rows;
    if (this.world === null) return;
    for (const entry of rows.entries.values()) {
      if (entry.sequence <= this.seen) continue;
      const fresh = entry.sequence > rows.settled;
      this.light(entry, now, fresh);
    }
    for (const entry of rows.entries.values()) this.seen = Math.max(this.seen, entry.sequence);
    if (this.measure !== null) this.bubbles = this.weigh(rows, this.measure);
    this.wake();
  }

  describe(): string {
    const recent = [...this.glows.values()].slice(-5).map((glow) => glow.label);
    return recent.length === 0 ? "Nothing on the map yet." : `Newest on the map: ${[...new Set(recent)].join(", ")}.`;
  }

  private placeOf(entry: Entry): Dot | null {
    const lat = numberOf(entry.row[this.choice.lat]);
    const lon = numberOf(entry.row[this.choice.lon]);
    return lat === null || lon === null ? null : (this.world?.place(lat, lon) ?? null);
  }

  private light(entry: Entry, now: number, fresh: boolean): void {
    const place = this.placeOf(entry);
    if (place === null) return;
    const label = labelOf(entry.row, this.choice.label);
    const at = fresh ? now + Math.random() * SPREAD_MS : now - GLOW_MS * (0.3 + Math.random() * 0.4);
    const ping = { ...place, at, label };
    const spot = `${Math.round(place.x)},${Math.round(place.y)}`;
    this.glows.delete(spot);
    this.glows.set(spot, ping);
    if (this.glows.size > MOST_GLOWS) this.glows.delete(this.glows.keys().next().value ?? "");
    if (fresh && this.pings.length < MOST_PINGS) this.pings.push(ping);
  }

  private weigh(rows: Rows, measure: string): (Dot & { share: number })[] {
    const weighed: (Dot & { value: number })[] = [];
    for (const entry of rows.entries.values()) {
      const place = this.placeOf(entry);
      const value = numberOf(entry.row[measure]);
      if (place !== null && value !== null && value > 0) weighed.push({ ...place, value });
    }
    weighed.sort((a, b) => b.value - a.value);
    const most = weighed[0]?.value ?? 1;
    return weighed.slice(0, 400).map((spot) => ({ x: spot.x, y: spot.y, share: spot.value / most }));
  }

  private fit(): void {
    const width = this.root.clientWidth;
    if (width === 0 || Math.round(this.world?.width ?? 0) === width) return;
    this.world = world(width);
    this.pings = [];
    this.glows.clear();
    this.seen = 0;
    const scale = Math.min(devicePixelRatio, 2);
    for (const canvas of [this.base, this.overlay]) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(this.world.height * scale);
      canvas.getContext("2d")?.scale(scale, scale);
    }
    this.root.style.aspectRatio = `${width} / ${this.world.height}`;
    this.drawBase();
    if (this.rows !== null) this.paint(this.rows, performance.now());
  }

  private drawBase(): void {
    const context = this.base.getContext("2d");
    if (context === null || this.world === null) return;
    context.clearRect(0, 0, this.world.width, this.world.height);
    context.fillStyle = this.colours.land;
    context.beginPath();
    const radius = this.world.spacing * 0.33;
    for (const { x, y } of this.world.dots) {
      context.moveTo(x + radius, y);
      context.arc(x, y, radius, 0, Math.PI * 2);
    }
    context.fill();
  }

  private wake(): void {
    if (this.running) return;
    this.running = true;
    requestAnimationFrame((now) => {
      this.frame(now);
    });
  }

  private frame(now: number): void {
    if (now - this.drawnAt >= FRAME_MS) {
      this.drawnAt = now;
      this.pings = this.pings.filter((ping) => now - ping.at < LABEL_MS);
      for (const [spot, glow] of this.glows) if (now - glow.at > GLOW_MS) this.glows.delete(spot);
      this.drawOverlay(now);
    }
    this.running = this.pings.length + this.glows.size > 0;
    if (!this.running) return;
    requestAnimationFrame((next) => {
      this.frame(next);
    });
  }

  private drawOverlay(now: number): void {
    const context = this.overlay.getContext("2d");
    if (context === null || this.world === null) return;
    const unit = this.world.spacing;
    context.clearRect(0, 0, this.world.width, this.world.height);
    context.fillStyle = this.colours.glow;
    for (const { x, y, share } of this.bubbles) {
      context.globalAlpha = 0.45;
      disc(context, x, y, unit * (0.5 + 3.2 * Math.sqrt(share)));
    }
    for (const { x, y, at } of this.glows.values()) {
      const age = Math.max(0, now - at) / GLOW_MS;
      context.globalAlpha = 0.95 * (1 - age) ** 1.5;
      disc(context, x, y, unit * 0.52);
    }
    context.strokeStyle = context.fillStyle = this.colours.ping;
    for (const ping of this.pings) this.drawPing(context, ping, now - ping.at, unit);
    this.drawLabels(context, now, unit);
    context.globalAlpha = 1;
  }

  private drawPing(context: CanvasRenderingContext2D, { x, y }: Ping, age: number, unit: number): void {
    if (age < 0 || age > RING_MS) return;
    const way = age / RING_MS;
    const eased = 1 - (1 - way) ** 3;
    context.globalAlpha = (1 - way) ** 1.2;
    disc(context, x, y, unit * (0.95 - 0.4 * way));
    if (motionReduced()) return;
    context.globalAlpha = 0.8 * (1 - way) ** 1.6;
    context.lineWidth = Math.max(1, unit * 0.26 * (1 - way));
    context.beginPath();
    context.arc(x, y, unit * (0.8 + 3.6 * eased), 0, Math.PI * 2);
    context.stroke();
  }

  /** A few places are named as they light up; names that would cover each other wait. */
  private drawLabels(context: CanvasRenderingContext2D, now: number, unit: number): void {
    const size = Math.max(10, unit * 1.75);
    context.font = `500 ${size}px "Geist Variable", system-ui, sans-serif`;
    context.textBaseline = "middle";
    const taken: Dot[] = [];
    for (const ping of [...this.pings].sort((a, b) => a.at - b.at)) {
      const age = now - ping.at;
      if (age < 0 || taken.length >= 5 || ping.label === "") continue;
      const near = taken.some((other) => Math.abs(other.x - ping.x) < size * 9 && Math.abs(other.y - ping.y) < size * 1.5);
      if (near) continue;
      taken.push(ping);
      const label = ping.label.length > 22 ? `${ping.label.slice(0, 21)}…` : ping.label;
      const left = ping.x + unit * 1.8 + context.measureText(label).width > (this.world?.width ?? 0);
      context.textAlign = left ? "right" : "left";
      const x = ping.x + (left ? -1.8 : 1.8) * unit;
      context.globalAlpha = Math.min(1, age / 200, (LABEL_MS - age) / 700);
      context.lineWidth = size * 0.28;
      context.strokeStyle = this.colours.paper;
      context.lineJoin = "round";
      context.strokeText(label, x, ping.y);
      context.fillStyle = this.colours.text;
      context.fillText(label, x, ping.y);
    }
  }
}

function disc(context: CanvasRenderingContext2D, x: number, y: number, radius: number): void {
  context.beginPath();
  context.arc(x, y, radius, 0, Math.PI * 2);
  context.fill();
}

