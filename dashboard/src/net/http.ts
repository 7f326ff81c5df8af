import { parse } from "./json";
import { explain, type QueryAnswer, type System } from "./protocol";

const EVERY_MS = 1_000;
const PATIENCE_MS = 5_000;

async function answer(response: Response): Promise<unknown> {
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

/** Asks for the system's state each second, one request at a time; `null` means no answer. */
export function watchSystem(onSystem: (system: System | null) => void): void {
  const ask = async (): Promise<void> => {
    const began = Date.now();
    const options = { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) } as const;
    const system = await fetch("v1/system", options)
      .then(answer)
      .catch(() => null);
    setTimeout(() => void ask(), Math.max(100, EVERY_MS - (Date.now() - began)));
    onSystem(system as System | null);
  };
  void ask();
}

/** The rows of one read-only SQL query; throws an Error with the server's words. */
export async function query(sql: string, signal: AbortSignal): Promise<QueryAnswer> {
  const response = await fetch("v1/query", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ sql }),
    signal,
  });
  return (await answer(response)) as QueryAnswer;
}
