import type { Span } from "./columns";

const AHEAD_MS = 60_000;

/**
 * The window to show as "now": of those that are still open, the one that has collected longest.
 * Sliding windows overlap: the newest has only just begun and would show next to nothing. The
 * newest start tells where event time stands; windows from a sender's wrong clock don't count.
 */
export function currentWindow(spans: Iterable<Span>, now: number): Span | null {
  const all = [...spans];
  const past = all.filter((span) => span.start <= now + AHEAD_MS);
  const known = past.length > 0 ? past : all;
  let newest = -Infinity;
  for (const span of known) newest = Math.max(newest, span.start);
  let chosen: Span | null = null;
  for (const span of known) {
    if (span.end > newest && (chosen === null || span.end < chosen.end)) chosen = span;
  }
  return chosen;
}
