/** The connections of a server's clients: the body of `GET /v1/connections`. */

export interface OpenSubscription {
  /** view, stream, ledger, query or sql. */
  readonly kind: string;
  readonly name: string;
  readonly where?: string;
  readonly behind?: number;
  readonly skipped?: number;
}

export interface OpenConnection {
  readonly id: string;
  /** Who is logged in; empty without a login. */
  readonly caller: string;
  readonly address: string;
  readonly transport: string;
  readonly since: string;
  /** Messages a second. */
  readonly rate: number;
  readonly bytes: number;
  readonly behind: number;
  readonly skipped?: number;
  readonly subscriptions: readonly OpenSubscription[];
}
