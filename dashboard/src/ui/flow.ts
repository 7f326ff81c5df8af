import { element, motionReduced } from "./dom";
import { ink, onTheme } from "./theme";

/** What runs between two boxes of the tiers' picture. */
export interface Channel {
  readonly from: HTMLElement;
  readonly to: HTMLElement;
  readonly rate: number;
  readonly broken: boolean;
}

interface Drop {
  readonly channel: number;
  readonly lane: number;
  readonly speed: number;
  way: number;
}

interface Course {
  readonly x: number;
  readonly y: number;
  readonly dx: number;
  readonly dy: number;
}

const FRAME_MS = 1_000 / 30;
const MOST_DROPS = 260;
const ROOMY = 70;

/** Drops a second for a rate: one each while the eye can count them, then by the logarithm. */
export function dropsFor(rate: number): number {
  return rate <= 6 ? rate : 6 + 4 * Math.log2(rate / 6);
}

/** How many lanes wide a channel is drawn. */
export function lanesFor(rate: number): number {
  return rate <= 0 ? 1 : Math.min(7, 1 + Math.floor(1.6 * Math.log10(1 + rate)));
}

/** Water between the boxes: as many drops as the rate asks for, none through a broken channel. */
export class Flow {
  readonly canvas = element("canvas", { "aria-hidden": "true", class: "flow" });
  private channels: readonly Channel[] = [];
  private courses: readonly Course[] = [];
  private drops: Drop[] = [];
  private owed: number[] = [];
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
      this.colours = { line: ink("line"), drop: ink("stream"), broken: ink("bad") };
    });
    const step = (now: number): void => {
      if (this.visible && now - this.drawnAt >= FRAME_MS) this.draw(now);
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  show(channels: readonly Channel[]): void {
    this.channels = channels;
    if (this.courses.length !== channels.length) this.measure();
  }

  private measure(): void {
    const frame = this.frameOf.getBoundingClientRect();
    const scale = Math.min(devicePixelRatio, 2);
    this.rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    this.canvas.width = Math.round(frame.width * scale);
    this.canvas.height = Math.round(frame.height * scale);
    this.canvas.getContext("2d")?.setTransform(scale, 0, 0, scale, 0, 0);
    this.courses = this.channels.map(({ from, to }) => {
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
    this.courses.forEach((course, index) => {
      const channel = this.channels[index];
      if (channel !== undefined) this.drawBed(context, course, channel, rem);
    });
    if (motionReduced()) return;
    this.rain(passed);
    this.drops = this.drops.filter((drop) => (drop.way += drop.speed * passed) < 1);
    context.fillStyle = this.colours.drop;
    for (const drop of this.drops) this.drawDrop(context, drop, rem);
    context.globalAlpha = 1;
  }

  private rain(passed: number): void {
    this.channels.forEach((channel, index) => {
      if (channel.broken) return;
      const course = this.courses[index];
      // A short channel holds fewer drops: crowded ones would stand still to the eye.
      const room = course === undefined ? 0 : Math.min(1, (Math.abs(course.dx) + Math.abs(course.dy)) / ROOMY);
      const owed = (this.owed[index] ?? 0) + dropsFor(channel.rate) * room * passed;
      const lanes = lanesFor(channel.rate);
      for (let count = 0; count < Math.floor(owed) && this.drops.length < MOST_DROPS; count++) {
        const lane = Math.floor(Math.random() * lanes) - (lanes - 1) / 2;
        this.drops.push({ channel: index, lane, speed: 0.6 + Math.random() * 0.25, way: 0 });
      }
      this.owed[index] = owed % 1;
    });
  }

  private drawBed(context: CanvasRenderingContext2D, course: Course, channel: Channel, rem: number): void {
    context.globalAlpha = 1;
    context.strokeStyle = channel.broken ? this.colours.broken : this.colours.line;
    context.lineCap = "butt";
    // With drops the bed stays thin; without movement its width alone tells the rate.
    context.lineWidth = motionReduced() ? lanesFor(channel.rate) * rem * 0.16 : rem * 0.09;
    context.setLineDash(channel.broken ? [rem * 0.3, rem * 0.3] : []);
    context.beginPath();
    context.moveTo(course.x, course.y);
    context.lineTo(course.x + course.dx, course.y + course.dy);
    context.stroke();
  }

  private drawDrop(context: CanvasRenderingContext2D, drop: Drop, rem: number): void {
    const course = this.courses[drop.channel];
    if (course === undefined || this.channels[drop.channel]?.broken === true) return;
    // Lanes fan out of one mouth and back into the next.
    const width = Math.min(rem * 0.3, (Math.abs(course.dx) + Math.abs(course.dy)) / 8);
    const bulge = Math.sin(Math.PI * drop.way) * drop.lane * width;
    const across = course.dx === 0 ? { x: bulge, y: 0 } : { x: 0, y: bulge };
    context.globalAlpha = Math.min(1, drop.way * 6, (1 - drop.way) * 6);
    context.beginPath();
    context.arc(
      course.x + course.dx * drop.way + across.x,
      course.y + course.dy * drop.way + across.y,
      rem * 0.12,
      0,
      Math.PI * 2,
    );
    context.fill();
  }
}
