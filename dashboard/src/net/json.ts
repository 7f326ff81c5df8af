import type { Value } from "./protocol";

const LONG_INTEGER = /\d{16}/;

type Reviver = (key: string, value: unknown, context?: { source?: string }) => unknown;

/**
 * JSON whose integers beyond 2^53 come out as decimal text instead of a neighbouring double.
 * Two different 64-bit keys would otherwise become the same row. The slower reviver runs only on
 * texts that hold such digits; a browser without source access shows the rounded number.
 */
export function parse(text: string): unknown {
  if (!LONG_INTEGER.test(text)) return JSON.parse(text);
  const exact: Reviver = (_key, value, context) => {
    if (typeof value !== "number" || Number.isSafeInteger(value)) return value;
    const source = context?.source;
    return source !== undefined && /^-?\d+$/.test(source) ? source : value;
  };
  return JSON.parse(text, exact) as Value;
}
