import { motionReduced } from "../ui/dom";
import type { Dot, World } from "./world";

export const RING_MS = 1_500;
export const GLOW_MS = 45_000;
export const LABEL_MS = 2_600;
const MAX_LABELS = 5;
const LONGEST_LABEL = 22;

export interface Ping extends Dot {
  readonly at: number;
  readonly label: string;
}

export interface Bubble extends Dot {
  /** The fraction of the largest value, 0 to 1. */
  readonly share: number;
}

export interface Colours {
  readonly land: string;
  readonly glow: string;
  readonly ping: string;
  readonly text: string;
  readonly paper: string;
}

export interface Lights {
  readonly bubbles: readonly Bubble[];
  readonly glows: Iterable<Ping>;
  readonly pings: readonly Ping[];
}

export function drawLand(context: CanvasRenderingContext2D, world: World, colours: Colours): void {
  context.clearRect(0, 0, world.width, world.height);
  context.fillStyle = colours.land;
  context.beginPath();
  const radius = world.spacing * 0.33;
  for (const { x, y } of world.dots) {
    context.moveTo(x + radius, y);
    context.arc(x, y, radius, 0, Math.PI * 2);
  }
  context.fill();
}

/** Draws bubbles for values, glows for recent changes, rings for new changes, and a few place names. */
export function drawLights(
  context: CanvasRenderingContext2D,
  world: World,
  colours: Colours,
  lights: Lights,
  now: number,
): void {
  const unit = world.spacing;
  context.clearRect(0, 0, world.width, world.height);
  context.fillStyle = colours.glow;
  context.globalAlpha = 0.45;
  for (const { x, y, share } of lights.bubbles) disc(context, x, y, unit * (0.5 + 3.2 * Math.sqrt(share)));
  for (const { x, y, at } of lights.glows) {
    context.globalAlpha = 0.95 * (1 - Math.max(0, now - at) / GLOW_MS) ** 1.5;
    disc(context, x, y, unit * 0.52);
  }
  context.strokeStyle = context.fillStyle = colours.ping;
  for (const ping of lights.pings) drawPing(context, ping, now - ping.at, unit);
  drawLabels(context, world, colours, lights.pings, now);
  context.globalAlpha = 1;
}

function drawPing(context: CanvasRenderingContext2D, { x, y }: Ping, age: number, unit: number): void {
  if (age < 0 || age > RING_MS) return;
  const progress = age / RING_MS;
  const eased = 1 - (1 - progress) ** 3;
  context.globalAlpha = (1 - progress) ** 1.2;
  disc(context, x, y, unit * (0.95 - 0.4 * progress));
  if (motionReduced()) return;
  context.globalAlpha = 0.8 * (1 - progress) ** 1.6;
  context.lineWidth = Math.max(1, unit * 0.26 * (1 - progress));
  context.beginPath();
  context.arc(x, y, unit * (0.8 + 3.6 * eased), 0, Math.PI * 2);
  context.stroke();
}

/** Names a few places as they light up, and leaves out a name that would cover another. */
function drawLabels(
  context: CanvasRenderingContext2D,
  world: World,
  colours: Colours,
  pings: readonly Ping[],
  now: number,
): void {
  const unit = world.spacing;
  const size = Math.max(10, unit * 1.75);
  context.font = `500 ${size}px "Geist Variable", system-ui, sans-serif`;
  context.textBaseline = "middle";
  context.lineJoin = "round";
  context.lineWidth = size * 0.28;
  context.strokeStyle = colours.paper;
  context.fillStyle = colours.text;
  const labelled: Dot[] = [];
  for (const ping of [...pings].sort((a, b) => a.at - b.at)) {
    const age = now - ping.at;
    if (age < 0 || age > LABEL_MS || labelled.length >= MAX_LABELS || ping.label === "") continue;
    const covers = (other: Dot): boolean =>
      Math.abs(other.x - ping.x) < size * 9 && Math.abs(other.y - ping.y) < size * 1.5;
    if (labelled.some(covers)) continue;
    labelled.push(ping);
    const long = ping.label.length > LONGEST_LABEL;
    const label = long ? `${ping.label.slice(0, LONGEST_LABEL - 1)}…` : ping.label;
    const left = ping.x + unit * 1.8 + context.measureText(label).width > world.width;
    context.textAlign = left ? "right" : "left";
    context.globalAlpha = Math.max(0, Math.min(1, age / 200, (LABEL_MS - age) / 700));
    const x = ping.x + (left ? -1.8 : 1.8) * unit;
    context.strokeText(label, x, ping.y);
    context.fillText(label, x, ping.y);
  }
}

function disc(context: CanvasRenderingContext2D, x: number, y: number, radius: number): void {
  context.beginPath();
  context.arc(x, y, radius, 0, Math.PI * 2);
  context.fill();
}
