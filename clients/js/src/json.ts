import type { Value } from "./messages.js";

const LONG_INTEGER = /\d{16}/;

type Reviver = (key: string, value: unknown, context?: { source?: string }) => unknown;

/**
 * Parses JSON and keeps integers beyond 2^53 as decimal text.
 * As doubles, two different 64-bit keys could become the same row. The slower reviver runs only on
 * texts with that many digits. An engine without source access in revivers rounds such numbers.
 */
export function parse(text: string): unknown {
  if (!LONG_INTEGER.test(text)) return JSON.parse(text);
  const keepExact: Reviver = (_key, value, context) => {
    if (typeof value !== "number" || Number.isSafeInteger(value)) return value;
    const source = context?.source;
    return source !== undefined && /^-?\d+$/.test(source) ? source : value;
  };
  return JSON.parse(text, keepExact) as Value;
}
