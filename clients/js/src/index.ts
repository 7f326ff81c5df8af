export { backoff } from "./backoff.js";
export { Client } from "./client.js";
export * from "./columns.js";
export type { ConnectionOptions, ConnectionState, Socket } from "./connection.js";
export * from "./messages.js";
export * from "./order.js";
export * from "./rows.js";
export { Subscription, type RowStore, type StoredRows, type SubscriptionOptions } from "./subscription.js";
export * from "./system.js";
