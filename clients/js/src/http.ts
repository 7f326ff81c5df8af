import { parse } from "./json.js";
import { explain, type QueryResult } from "./messages.js";
import type { System } from "./system.js";

const POLL_EVERY_MS = 1_000;
const TIMEOUT_MS = 5_000;

async function bodyOf(response: Response): Promise<unknown> {
  const text = await response.text();
  if (response.ok) return parse(text);
  let problem: { title?: string; detail?: string };
  try {
    problem = JSON.parse(text) as { title?: string; detail?: string };
  } catch {
    problem = { title: `${response.status} ${response.statusText}`.trim() };
  }
  throw new Error(explain(problem));
}

/**
 * Requests the system's description each second, one request at a time.
 * Calls back with `null` if the server does not answer. Returns a function that stops it.
 */
export function watchSystem(base: URL, onSystem: (system: System | null) => void): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let stopped = false;
  const poll = async (): Promise<void> => {
    const began = Date.now();
    const options = { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) } as const;
    const system = await fetch(new URL("v1/system", base), options)
      .then(bodyOf)
      .catch(() => null);
    if (stopped) return;
    timer = setTimeout(() => void poll(), Math.max(100, POLL_EVERY_MS - (Date.now() - began)));
    onSystem(system as System | null);
  };
  void poll();
  return () => {
    stopped = true;
    clearTimeout(timer);
  };
}

/** The rows of one read-only SQL query; throws an Error with the server's explanation. */
export async function query(base: URL, sql: string, signal: AbortSignal | null = null): Promise<QueryResult> {
  const response = await fetch(new URL("v1/query", base), {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ sql }),
    signal,
  });
  return (await bodyOf(response)) as QueryResult;
}
