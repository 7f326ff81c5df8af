import type { TimeWindow } from "@millstream/client";

const AHEAD_MS = 60_000;

/**
 * The window to show as the current one: of the open windows, the one that started first.
 * Sliding windows overlap, and the newest one has hardly any events yet. The newest start gives the
 * current event time; windows far ahead of `now` come from a wrong clock and are left out.
 */
export function currentWindow(windows: Iterable<TimeWindow>, now: number): TimeWindow | null {
  const all = [...windows];
  const past = all.filter((window) => window.start <= now + AHEAD_MS);
  const known = past.length > 0 ? past : all;
  let newest = -Infinity;
  for (const window of known) newest = Math.max(newest, window.start);
  let chosen: TimeWindow | null = null;
  for (const window of known) {
    if (window.end > newest && (chosen === null || window.end < chosen.end)) chosen = window;
  }
  return chosen;
}
