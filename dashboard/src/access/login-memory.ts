const SECRET = "millstream.login";
const REASON = "millstream.login.reason";

/** Keeps the key or token of this tab. The browser forgets it with the tab; nothing is written to disk. */
export const loginMemory = {
  /** The key or token; empty without a login. */
  secret(): string {
    return sessionStorage.getItem(SECRET) ?? "";
  },

  save(secret: string): void {
    sessionStorage.setItem(SECRET, secret);
  },

  /** Forgets the login and all that its reader typed, and remembers why, for the next load of the page. */
  forget(reason: string): void {
    sessionStorage.clear();
    sessionStorage.setItem(REASON, reason);
  },

  /** Why the last login ended; empty if there was none, or if this was asked before. */
  takeReason(): string {
    const reason = sessionStorage.getItem(REASON) ?? "";
    sessionStorage.removeItem(REASON);
    return reason;
  },
};
