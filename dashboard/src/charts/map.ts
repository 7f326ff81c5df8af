import { type Entry, numberOf, type Rows } from "@millstream/client";
import { element } from "../ui/dom";
import { color, onTheme } from "../ui/theme";
import { drawLand, drawLights, GLOW_MS, LABEL_MS, type Bubble, type Colours, type Ping } from "./map-drawing";
import type { Chart } from "./chart";
import { labelOf } from "./label";
import { chooseExtent, region, type Extent, type Place } from "./region";
import { world, type Dot, type World } from "./world";

const MAX_PINGS = 90;
const MAX_GLOWS = 1_500;
const FRAME_MS = 1_000 / 30;
/** Rows reach a chart in groups; the pings of one group start at random times within this time. */
const SPREAD_MS = 220;

interface Choice {
  readonly lat: string;
  readonly lon: string;
  readonly label: readonly string[];
}

/** A map of dots: of the world, or of a region if all rows lie in it. Each change lights up at its place. */
export class WorldMap implements Chart {
  readonly root: HTMLElement;
  readonly visibleWhenEmpty = true;
  private readonly base = element("canvas", { "aria-hidden": "true" });
  private readonly overlay = element("canvas", { "aria-hidden": "true" });
  private world: World | null = null;
  private extent: Extent | null = null;
  private seen = 0;
  private pings: Ping[] = [];
  private readonly glows = new Map<string, Ping>();
  private bubbles: readonly Bubble[] = [];
  private running = false;
  private drawnAt = 0;
  private colours: Colours = { land: "", glow: "", ping: "", text: "", paper: "" };
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
        land: color("land"),
        glow: color("stream"),
        ping: color("warm"),
        text: color("text"),
        paper: color("surface"),
      };
      this.drawBase();
      this.startAnimation();
    });
  }

  paint(rows: Rows, now: number): void {
    this.rows = rows;
    if (this.world === null) return;
    const extent = chooseExtent(this.extent, this.placesOf(rows));
    if (extent !== this.extent) {
      this.extent = extent;
      this.layOut(this.world.width);
    }
    for (const entry of rows.entries.values()) {
      if (entry.sequence <= this.seen) continue;
      const fresh = entry.sequence > rows.snapshotSequence;
      this.addPing(entry, now, fresh);
    }
    for (const entry of rows.entries.values()) this.seen = Math.max(this.seen, entry.sequence);
    if (this.measure !== null) this.bubbles = this.bubblesOf(rows, this.measure);
    this.startAnimation();
  }

  describe(): string {
    const recent = [...this.glows.values()].slice(-5).map((glow) => glow.label);
    return recent.length === 0 ? "Nothing on the map yet." : `Newest on the map: ${[...new Set(recent)].join(", ")}.`;
  }

  private *placesOf(rows: Rows): Iterable<Place> {
    for (const entry of rows.entries.values()) {
      const place = this.coordinatesOf(entry);
      if (place !== null) yield place;
    }
  }

  private coordinatesOf(entry: Entry): Place | null {
    const lat = numberOf(entry.row[this.choice.lat]);
    const lon = numberOf(entry.row[this.choice.lon]);
    return lat === null || lon === null ? null : { lat, lon };
  }

  private placeOf(entry: Entry): Dot | null {
    const at = this.coordinatesOf(entry);
    return at === null ? null : (this.world?.place(at.lat, at.lon) ?? null);
  }

  private addPing(entry: Entry, now: number, fresh: boolean): void {
    const place = this.placeOf(entry);
    if (place === null) return;
    const label = labelOf(entry.row, this.choice.label);
    const at = fresh ? now + Math.random() * SPREAD_MS : now - GLOW_MS * (0.3 + Math.random() * 0.4);
    const ping = { ...place, at, label };
    const spot = `${Math.round(place.x)},${Math.round(place.y)}`;
    this.glows.delete(spot);
    this.glows.set(spot, ping);
    if (this.glows.size > MAX_GLOWS) this.glows.delete(this.glows.keys().next().value ?? "");
    if (fresh && this.pings.length < MAX_PINGS) this.pings.push(ping);
  }

  private bubblesOf(rows: Rows, measure: string): Bubble[] {
    const places: (Dot & { value: number })[] = [];
    for (const entry of rows.entries.values()) {
      const place = this.placeOf(entry);
      const value = numberOf(entry.row[measure]);
      if (place !== null && value !== null && value > 0) places.push({ ...place, value });
    }
    places.sort((a, b) => b.value - a.value);
    const largest = places[0]?.value ?? 1;
    return places.slice(0, 400).map((spot) => ({ x: spot.x, y: spot.y, share: spot.value / largest }));
  }

  private fit(): void {
    const width = this.root.clientWidth;
    if (width === 0 || Math.round(this.world?.width ?? 0) === width) return;
    this.layOut(width);
    if (this.rows !== null) this.paint(this.rows, performance.now());
  }

  private layOut(width: number): void {
    this.world = this.extent === null ? world(width) : region(width, this.extent);
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
  }

  private drawBase(): void {
    const context = this.base.getContext("2d");
    if (context !== null && this.world !== null) drawLand(context, this.world, this.colours);
  }

  private startAnimation(): void {
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
      const context = this.overlay.getContext("2d");
      const lights = { bubbles: this.bubbles, glows: this.glows.values(), pings: this.pings };
      if (context !== null && this.world !== null) drawLights(context, this.world, this.colours, lights, now);
    }
    this.running = this.pings.length + this.glows.size > 0;
    if (!this.running) return;
    requestAnimationFrame((next) => {
      this.frame(next);
    });
  }
}
