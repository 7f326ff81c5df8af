import { element, motionReduced } from "./dom";
import { color, onTheme } from "./theme";

/** The flow between two boxes of the tiers' diagram. */
export interface Channel {
  readonly from: HTMLElement;
  readonly to: HTMLElement;
  readonly rate: number;
  readonly broken: boolean;
}

interface Drop {
  readonly channel: number;
  readonly track: number;
  readonly speed: number;
  progress: number;
}

interface Segment {
  readonly x: number;
  readonly y: number;
  readonly dx: number;
  readonly dy: number;
}

const FRAME_MS = 1_000 / 30;
const MAX_DROPS = 260;
const FULL_LENGTH = 70;

/** Drops per second for a rate: one for each event up to 6 per second, then by the logarithm. */
export function dropsPerSecond(rate: number): number {
  return rate <= 6 ? rate : 6 + 4 * Math.log2(rate / 6);
}

/** The width of a channel, in tracks. */
export function tracksFor(rate: number): number {
  return rate <= 0 ? 1 : Math.min(7, 1 + Math.floor(1.6 * Math.log10(1 + rate)));
}

/** Animates drops between the boxes: their number follows the rate, and a broken channel has none. */
export class Flow {
  readonly canvas = element("canvas", { "aria-hidden": "true", class: "flow" });
  private channels: readonly Channel[] = [];
  private segments: readonly Segment[] = [];
  private drops: Drop[] = [];
  private fractions: number[] = [];
  private drawnAt = 0;
  private rem = 16;
  private visible = true;
  private colours = { line: "", drop: "", broken: "" };

  constructor(private readonly frameOf: HTMLElement) {
    new ResizeObserver(() => {
      this.measure();
    }).observe(frameOf);
    new IntersectionObserver(([entry]) => {
      this.visible = entry?.isIntersecting ?? true;
    }).observe(frameOf);
    onTheme(() => {
      this.colours = { line: color("line"), drop: color("stream"), broken: color("bad") };
    });
    const step = (now: number): void => {
      if (this.visible && now - this.drawnAt >= FRAME_MS) this.draw(now);
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  show(channels: readonly Channel[]): void {
    this.channels = channels;
    if (this.segments.length !== channels.length) this.measure();
  }

  private measure(): void {
    const frame = this.frameOf.getBoundingClientRect();
    const scale = Math.min(devicePixelRatio, 2);
    this.rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    this.canvas.width = Math.round(frame.width * scale);
    this.canvas.height = Math.round(frame.height * scale);
    this.canvas.getContext("2d")?.setTransform(scale, 0, 0, scale, 0, 0);
    this.segments = this.channels.map(({ from, to }) => {
      const a = from.getBoundingClientRect();
      const b = to.getBoundingClientRect();
      if (b.left >= a.right - 1) {
        const y = a.top + a.height / 2 - frame.top;
        return { x: a.right - frame.left, y, dx: b.left - a.right, dy: 0 };
      }
      const x = a.left + Math.min(a.width, b.width) / 2 - frame.left;
      return { x, y: a.bottom - frame.top, dx: 0, dy: b.top - a.bottom };
    });
  }

  private draw(now: number): void {
    const context = this.canvas.getContext("2d");
    if (context === null) return;
    const passed = Math.min(0.1, (now - this.drawnAt) / 1_000);
    this.drawnAt = now;
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const { rem } = this;
    this.segments.forEach((segment, index) => {
      const channel = this.channels[index];
      if (channel !== undefined) this.drawLine(context, segment, channel, rem);
    });
    if (motionReduced()) return;
    this.addDrops(passed);
    this.drops = this.drops.filter((drop) => (drop.progress += drop.speed * passed) < 1);
    context.fillStyle = this.colours.drop;
    for (const drop of this.drops) this.drawDrop(context, drop, rem);
    context.globalAlpha = 1;
  }

  private addDrops(passed: number): void {
    this.channels.forEach((channel, index) => {
      if (channel.broken) return;
      const segment = this.segments[index];
      // A short channel gets fewer drops: a dense row of drops does not seem to move.
      const share = segment === undefined ? 0 : Math.min(1, (Math.abs(segment.dx) + Math.abs(segment.dy)) / FULL_LENGTH);
      const due = (this.fractions[index] ?? 0) + dropsPerSecond(channel.rate) * share * passed;
      const tracks = tracksFor(channel.rate);
      for (let count = 0; count < Math.floor(due) && this.drops.length < MAX_DROPS; count++) {
        const track = Math.floor(Math.random() * tracks) - (tracks - 1) / 2;
        this.drops.push({ channel: index, track, speed: 0.6 + Math.random() * 0.25, progress: 0 });
      }
      this.fractions[index] = due % 1;
    });
  }

  private drawLine(context: CanvasRenderingContext2D, segment: Segment, channel: Channel, rem: number): void {
    context.globalAlpha = 1;
    context.strokeStyle = channel.broken ? this.colours.broken : this.colours.line;
    context.lineCap = "butt";
    // With reduced motion there are no drops: the width of the line shows the rate instead.
    context.lineWidth = motionReduced() ? tracksFor(channel.rate) * rem * 0.16 : rem * 0.09;
    context.setLineDash(channel.broken ? [rem * 0.3, rem * 0.3] : []);
    context.beginPath();
    context.moveTo(segment.x, segment.y);
    context.lineTo(segment.x + segment.dx, segment.y + segment.dy);
    context.stroke();
  }

  private drawDrop(context: CanvasRenderingContext2D, drop: Drop, rem: number): void {
    const segment = this.segments[drop.channel];
    if (segment === undefined || this.channels[drop.channel]?.broken === true) return;
    // Tracks spread out after one box and meet again at the next.
    const width = Math.min(rem * 0.3, (Math.abs(segment.dx) + Math.abs(segment.dy)) / 8);
    const bulge = Math.sin(Math.PI * drop.progress) * drop.track * width;
    const across = segment.dx === 0 ? { x: bulge, y: 0 } : { x: 0, y: bulge };
    context.globalAlpha = Math.min(1, drop.progress * 6, (1 - drop.progress) * 6);
    context.beginPath();
    context.arc(
      segment.x + segment.dx * drop.progress + across.x,
      segment.y + segment.dy * drop.progress + across.y,
      rem * 0.12,
      0,
      Math.PI * 2,
    );
    context.fill();
  }
}
