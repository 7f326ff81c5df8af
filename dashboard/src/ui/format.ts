import { type Column, isIdentifier, kindOf, numberOf, timeOf, type TimeWindow, timeWindowOf, type Value } from "@millstream/client";

const LANGUAGE = "en-GB";
const whole = new Intl.NumberFormat(LANGUAGE, { maximumFractionDigits: 0 });
const fraction = new Intl.NumberFormat(LANGUAGE, { maximumFractionDigits: 2, minimumFractionDigits: 2 });
const small = new Intl.NumberFormat(LANGUAGE, { maximumSignificantDigits: 3 });
const compact = new Intl.NumberFormat(LANGUAGE, { notation: "compact", maximumFractionDigits: 1 });
const DAY_MS = 86_400_000;

export function number(value: number): string {
  if (Number.isInteger(value)) return whole.format(value);
  return Math.abs(value) < 1 ? small.format(value) : fraction.format(value);
}

/** Short enough for an axis: 12.3K. */
export function brief(value: number): string {
  return Math.abs(value) < 10_000 ? number(value) : compact.format(value);
}

/** Events a second: 0, 0.4, 12.3, 1,204. */
export function rate(perSecond: number): string {
  if (perSecond >= 100) return whole.format(perSecond);
  if (perSecond === 0) return "0";
  return perSecond < 0.05 ? "<0.1" : perSecond.toFixed(1);
}

/** Milliseconds in a readable unit: 7.4 ms, 83 ms, 2.1 s. */
export function duration(ms: number): string {
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1_000).toFixed(1)} s`;
  if (ms < 3_600_000) return `${Math.round(ms / 60_000)} min`;
  return `${(ms / 3_600_000).toFixed(1)} h`;
}

/** An estimate in seconds, rounded: 12 s, 3 min, 1.2 h. */
export function roughly(seconds: number): string {
  return seconds < 59.5 ? `${Math.max(1, Math.round(seconds))} s` : duration(seconds * 1_000);
}

/** A message of the server as a sentence: with a capital letter and a full stop. */
export function sentence(message: string): string {
  const text = message.trim();
  return text === "" ? "" : text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

/** Bytes in a readable unit: 812 B, 3.4 MB, 1.0 GB. */
export function bytes(count: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  for (; count >= 1_000 && at < units.length - 1; at++) count /= 1_000;
  return `${at === 0 || count >= 100 ? Math.round(count) : count.toFixed(1)} ${units[at] ?? ""}`;
}

const two = (value: number): string => String(value).padStart(2, "0");

function clock(at: Date, seconds: boolean): string {
  const minutes = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return seconds ? `${minutes}:${two(at.getSeconds())}` : minutes;
}

function day(at: Date, now: number): string {
  if (at.toDateString() === new Date(now).toDateString()) return "";
  const year = Math.abs(now - at.getTime()) > 300 * DAY_MS;
  const form: Intl.DateTimeFormatOptions = { day: "numeric", month: "short" };
  if (year) form.year = "numeric";
  return `${at.toLocaleDateString(LANGUAGE, form)} `;
}

/** A time in the reader's time zone; with the date only if it is another day. */
export function time(at: number, now: number = Date.now()): string {
  const date = new Date(at);
  return day(date, now) + clock(date, true);
}

/** A window as times: 14:00–15:00, with seconds only if it has some. */
export function timeWindow({ start, end }: TimeWindow, now: number = Date.now()): string {
  const [from, to] = [new Date(start), new Date(end)];
  if (start % DAY_MS === 0 && end % DAY_MS === 0 && end - start === DAY_MS) {
    return from.toISOString().slice(0, 10);
  }
  const seconds = start % 60_000 !== 0 || end % 60_000 !== 0;
  return `${day(from, now)}${clock(from, seconds)}–${clock(to, seconds)}`;
}

/** The text of a cell. It is set by textContent, never parsed as HTML. */
export function cell(value: Value | undefined, column: Column, now: number = Date.now()): string {
  if (value === null || value === undefined) return "–";
  switch (kindOf(column)) {
    case "window": {
      const window = timeWindowOf(value);
      return window === null ? plain(value) : timeWindow(window, now);
    }
    case "timestamp": {
      const at = timeOf(value);
      return at === null ? plain(value) : time(at, now);
    }
    case "number": {
      const parsed = numberOf(value);
      if (parsed === null || typeof value === "string" || isIdentifier(column.name)) return plain(value);
      return number(parsed);
    }
    default:
      return plain(value);
  }
}

function plain(value: Value): string {
  if (Array.isArray(value)) {
    const flat = value.every((item) => typeof item !== "object" || item === null);
    return flat ? value.map((item) => (item === null ? "–" : String(item))).join(", ") : JSON.stringify(value);
  }
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
