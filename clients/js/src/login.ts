/** Returns an API key or a token. It is called for every request, so that an expired token can be replaced. */
export type Credentials = () => string | Promise<string>;

export interface LoginOptions {
  /** The API key or token of the caller; without it, the client calls without a login. An empty text counts as none. */
  readonly credentials?: Credentials;
  /** The server refused the login, or revoked it. `reason` is the server's explanation. */
  readonly onUnauthorized?: (reason: string) => void;
}

/** An answer of the server that is not a success. */
export class RequestError extends Error {
  override readonly name = "RequestError";

  constructor(
    /** The HTTP status, for example 403. */
    readonly status: number,
    reason: string,
  ) {
    super(reason);
  }
}

const UNSENDABLE = "the key or token has a character that keys and tokens never have: copy it again";

/** The header that carries the login, if there is one. The login is never part of a URL, because URLs end up in logs. */
export async function authorization(credentials: Credentials | undefined): Promise<Record<string, string>> {
  const secret = ((await credentials?.()) ?? "").trim();
  if (secret === "") return {};
  if (!/^[\x21-\x7e]+$/.test(secret)) throw new RequestError(401, UNSENDABLE);
  return { authorization: `Bearer ${secret}` };
}
