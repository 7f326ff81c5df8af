import { parse } from "./json.js";
import { authorization, RequestError, type LoginOptions } from "./login.js";
import { explain } from "./messages.js";

const POLL_EVERY_MS = 1_000;
/** After this time a server counts as not answering. */
export const TIMEOUT_MS = 5_000;

/** A request whose headers are a plain object. */
interface Request extends Omit<RequestInit, "headers"> {
  readonly headers?: Readonly<Record<string, string>>;
}

/** Sends the HTTP requests of one client, each with its login. */
export class Http {
  constructor(
    private readonly base: URL,
    private readonly login: LoginOptions = {},
  ) {}

  /** The successful answer; throws a RequestError with the server's explanation otherwise. */
  async send(path: string, request: Request = {}): Promise<Response> {
    try {
      const headers = { ...request.headers, ...(await authorization(this.login.credentials)) };
      const response = await fetch(new URL(path, this.base), { cache: "no-store", ...request, headers });
      if (!response.ok) throw await refusalOf(response);
      return response;
    } catch (error) {
      if (error instanceof RequestError && error.status === 401) this.login.onUnauthorized?.(error.message);
      throw error;
    }
  }

  /** The JSON body of the answer. */
  async json(path: string, request: Request = {}): Promise<unknown> {
    return parse(await (await this.send(path, request)).text());
  }

  post(path: string, body: object, signal: AbortSignal | null = null): Promise<unknown> {
    return this.json(path, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
  }

  /**
   * A ticket for one WebSocket, which cannot carry a header in a browser. Null if there is no login, or if the
   * server is older than tickets.
   */
  async ticket(): Promise<string | null> {
    const headers = await authorization(this.login.credentials);
    if (headers.authorization === undefined) return null;
    try {
      const answer = await this.json("v1/tickets", { method: "POST", signal: AbortSignal.timeout(TIMEOUT_MS) });
      return (answer as { ticket: string }).ticket;
    } catch (error) {
      if (error instanceof RequestError && error.status === 404) return null;
      throw error;
    }
  }
}

async function refusalOf(response: Response): Promise<RequestError> {
  let problem: { title?: string; detail?: string };
  try {
    problem = JSON.parse(await response.text()) as { title?: string; detail?: string };
  } catch {
    problem = { title: `${response.status} ${response.statusText}`.trim() };
  }
  return new RequestError(response.status, explain(problem));
}

/** Receives an answer; or null, and the server's refusal if it answered at all. */
export type Watcher<T> = (answer: T | null, refusal: RequestError | null) => void;

/**
 * Requests a resource each second, one request at a time, until the server refuses the login.
 * Returns a function that stops it.
 */
export function watch<T>(http: Http, path: string, onAnswer: Watcher<T>): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let stopped = false;
  const poll = async (): Promise<void> => {
    const began = Date.now();
    let answer: T | null = null;
    let refusal: RequestError | null = null;
    try {
      answer = (await http.json(path, { signal: AbortSignal.timeout(TIMEOUT_MS) })) as T;
    } catch (error) {
      if (error instanceof RequestError) refusal = error;
    }
    if (stopped) return;
    if (refusal?.status !== 401) timer = setTimeout(() => void poll(), Math.max(100, POLL_EVERY_MS - (Date.now() - began)));
    onAnswer(answer, refusal);
  };
  void poll();
  return () => {
    stopped = true;
    clearTimeout(timer);
  };
}
