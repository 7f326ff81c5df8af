export { backoff } from "./backoff.js";
export { Client } from "./client.js";
export { LOGIN_EXPIRED, REVOKED } from "./close-codes.js";
export * from "./columns.js";
export type { ConnectionOptions, ConnectionState, Socket } from "./connection.js";
export type { EventsOptions } from "./events.js";
export type { Watcher } from "./http.js";
export { RequestError, type Credentials, type LoginOptions } from "./login.js";
export * from "./messages.js";
export type * from "./open-connections.js";
export * from "./order.js";
export * from "./rows.js";
export {
  Subscription,
  type NamedQuery,
  type RowStore,
  type Selection,
  type SelectionChange,
  type Source,
  type StoredRows,
  type SubscriptionOptions,
} from "./subscription.js";
export * from "./system.js";
