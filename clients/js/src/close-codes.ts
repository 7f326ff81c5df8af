/** The server asks for a fresh login. */
export const LOGIN_EXPIRED = 4001;
/** The key or token was revoked, or a right was withdrawn. */
export const REVOKED = 4503;

const SERVER_STOPS = 1001;
const SERVER_DRAINS = 1012;
const FIRST_FINAL = 4500;
const LAST_FINAL = 4999;

/** Whether a client connects again after the server closed the connection with this code, and when. */
export function reactionTo(code: number): "never" | "at once" | "later" {
  if (code >= FIRST_FINAL && code <= LAST_FINAL) return "never";
  return [SERVER_STOPS, SERVER_DRAINS, LOGIN_EXPIRED].includes(code) ? "at once" : "later";
}
