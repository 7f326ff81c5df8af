import { backoff } from "./backoff.js";
import type { Http } from "./http.js";
import { parse } from "./json.js";
import { RequestError } from "./login.js";
import type { Message } from "./messages.js";
import type { NamedQuery } from "./subscription.js";

export interface EventsOptions {
  readonly where?: string;
  readonly select?: readonly string[];
  readonly limit?: number;
  /** The position to continue from; without it, a snapshot comes first. */
  readonly after?: string;
  /** Ends the events. */
  readonly signal?: AbortSignal;
}

/**
 * The messages of one view or named query as server-sent events, over reconnects, until the loop over them ends.
 * They are read with `fetch`: the browser's EventSource can send no header, and a login in the URL would end up in logs.
 * Throws a RequestError if the server refuses the request, for example without a right.
 */
export async function* events(
  http: Http,
  path: string,
  options: EventsOptions = {},
  params: NamedQuery["params"] = {},
): AsyncGenerator<Message, void> {
  const { signal } = options;
  let after = options.after;
  for (let failures = 0; signal?.aborted !== true; failures++) {
    try {
      const response = await http.send(`${path}?${queryOf({ ...options, ...(after === undefined ? {} : { after }) }, params)}`, {
        headers: { accept: "text/event-stream" },
        signal: signal ?? null,
      });
      for await (const message of messagesOf(response)) {
        failures = 0;
        yield message;
        after = positionAfter(message) ?? after;
      }
    } catch (error) {
      if (error instanceof RequestError && error.status < 500 && error.status !== 429) throw error;
    }
    await pause(backoff(failures), signal);
  }
}

function queryOf({ where, select, limit, after }: EventsOptions, params: NonNullable<NamedQuery["params"]>): string {
  const values = Object.entries(params).map(([name, value]): [string, string] => [name, value === null ? "" : String(value)]);
  const members = { ...Object.fromEntries(values), where, select: select?.join(","), limit: limit?.toString(), after };
  return new URLSearchParams(Object.entries(members).filter((member): member is [string, string] => member[1] !== undefined)).toString();
}

/** The position to resume from; null if a message has none: a gap, or a part of a snapshot or result. */
function positionAfter(message: Message): string | null {
  if (message.type === "snapshot") return (message.last ?? true) ? message.position : null;
  if (message.type === "change") return (message.more ?? 0) === 0 ? message.position : null;
  return message.type === "lag" ? message.position : null;
}

async function* messagesOf(response: Response): AsyncGenerator<Message, void> {
  if (response.body === null) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    let text = "";
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const blocks = (text + part.value).split("\n\n");
      text = blocks.pop() ?? "";
      for (const block of blocks) {
        const data = block.split("\n").filter((line) => line.startsWith("data: "));
        if (data.length > 0) yield parse(data.map((line) => line.slice("data: ".length)).join("\n")) as Message;
      }
    }
  } finally {
    // Also when the loop over the messages ends early: the connection would stay open otherwise.
    await reader.cancel().catch(() => undefined);
  }
}

function pause(milliseconds: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve) => {
    const end = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, signal?.aborted === true ? 0 : milliseconds);
    signal?.addEventListener("abort", end);
  });
}
