import type { Change, Key, KeyedRow, Message, Row, Snapshot } from "./messages.js";

export interface Entry {
  readonly id: string;
  readonly key: Key;
  readonly row: Row;
  /** The place of the row from 1 on, in the result of a query that sorts its rows; null otherwise. */
  readonly rank: number | null;
  /** Grows with every change of the view, so that a reader can find the rows that are new to it. */
  readonly sequence: number;
}

/** The most keys that are held: a client does not need a million rows. */
export const MAX_ROWS = 50_000;
/** The number of newest rows that are held of a view without a key. */
export const MAX_EVENTS = 200;

/** A snapshot of which further pages are to come. */
interface LoadingSnapshot {
  readonly snapshotPosition: string;
  readonly entries: Map<string, Entry>;
  readonly total: number | null;
  position: string;
  received: number;
  truncated: boolean;
}

/** The rows of one subscription after the messages received so far. */
export class Rows {
  entries = new Map<string, Entry>();
  /** The position to continue from; null while the rows belong to no position. */
  position: string | null = null;
  /** True when keys were left out because there are more than MAX_ROWS, or than the requested limit. */
  truncated = false;
  /** Rows up to this sequence came in a snapshot or from the store; later ones came as changes. */
  snapshotSequence = 0;
  /** The rows that the store has not written yet: all of them, or these ids. */
  unsaved: { all: boolean; readonly ids: Set<string> } = { all: true, ids: new Set() };
  private loadingSnapshot: LoadingSnapshot | null = null;
  /** Changes of a query's result of which more are to come. Some of them alone are no result, so none is visible yet. */
  private incomplete: Change[] = [];
  private sequence = 0;

  /** How much of a snapshot has arrived, while more of its pages are to come. The old rows stay visible until then. */
  get loading(): { readonly received: number; readonly total: number | null } | null {
    return this.loadingSnapshot;
  }

  /** Applies one message; true if a row or the progress of a snapshot may have changed. */
  apply(message: Message): boolean {
    switch (message.type) {
      case "snapshot":
        return this.load(message);
      case "change":
        return this.collect(message);
      case "lag":
        this.adopt(message.position);
        return false;
      case "gap":
        this.incomplete = [];
        // The rows stay visible until the snapshot arrives, but no subscription may continue from them.
        this.position = null;
        return false;
      default:
        return false;
    }
  }

  /** Replaces all rows and the position, from a snapshot or from the store. */
  replace(rows: Iterable<KeyedRow>, position: string): void {
    const snapshot = newSnapshot(position, null);
    for (const row of rows) this.insert(snapshot, row);
    this.show(snapshot);
  }

  /** Forgets a part of a snapshot or of a result whose rest will not come, because the subscription starts again. */
  stopLoading(): void {
    this.loadingSnapshot = null;
    this.incomplete = [];
  }

  private load({ rows, position, page = 1, last = true, total, truncated = false }: Snapshot): boolean {
    if (page === 1) this.loadingSnapshot = newSnapshot(position, total ?? null);
    const loading = this.loadingSnapshot;
    // Such a page belongs to a subscription that was replaced meanwhile.
    if (loading?.snapshotPosition !== position) return false;
    for (const row of rows) this.insert(loading, row);
    loading.received += rows.length;
    loading.truncated ||= truncated;
    if (last) this.show(loading);
    return true;
  }

  private show(snapshot: LoadingSnapshot): void {
    this.entries = snapshot.entries;
    this.position = snapshot.position;
    this.truncated = snapshot.truncated;
    this.snapshotSequence = this.sequence;
    this.unsaved = { all: true, ids: new Set() };
    this.stopLoading();
  }

  /** A position that is newer than the last change: all changes between are hidden by the filter. */
  private adopt(position: string): void {
    if (this.position !== null && this.loadingSnapshot === null && this.incomplete.length === 0) this.position = position;
  }

  private collect(change: Change): boolean {
    this.incomplete.push(change);
    if ((change.more ?? 0) > 0) return false;
    const changes = this.incomplete;
    this.incomplete = [];
    return changes.map((each) => this.change(each)).includes(true);
  }

  private change({ op, key, row, rank, position }: Change): boolean {
    // The server sends a change only after the page with its row, so it belongs to the pages that arrived.
    if (this.loadingSnapshot !== null) this.loadingSnapshot.position = position;
    // Without rows that belong to a position, the change is of an earlier subscription.
    else if (this.position === null) return false;
    else this.position = position;
    const target = this.loadingSnapshot ?? this;
    if (op === "delete" || row === null) return this.remove(target.entries, key);
    this.insert(target, { key, row, ...(rank === undefined ? {} : { rank }) });
    return true;
  }

  private insert(target: Pick<LoadingSnapshot, "entries" | "truncated">, { key, row, rank }: KeyedRow): void {
    const { entries } = target;
    const sequence = ++this.sequence;
    const id = key === null ? `#${sequence}` : JSON.stringify(key);
    if (key !== null && entries.size >= MAX_ROWS && !entries.has(id)) {
      target.truncated = true;
      return;
    }
    entries.set(id, { id, key, row, rank: rank ?? null, sequence });
    this.markUnsaved(id);
    if (key === null) this.evictOldest(entries);
  }

  private remove(entries: Map<string, Entry>, key: Key): boolean {
    const id = JSON.stringify(key);
    this.markUnsaved(id);
    return entries.delete(id);
  }

  private evictOldest(entries: Map<string, Entry>): void {
    if (entries.size <= MAX_EVENTS) return;
    const oldest = entries.keys().next();
    if (oldest.done === true) return;
    entries.delete(oldest.value);
    this.markUnsaved(oldest.value);
  }

  private markUnsaved(id: string): void {
    if (this.unsaved.all) return;
    this.unsaved.ids.add(id);
    // A browser may stop a hidden tab's timers for a minute: the set must not grow without bound meanwhile.
    if (this.unsaved.ids.size > MAX_ROWS) this.unsaved = { all: true, ids: new Set() };
  }
}

function newSnapshot(position: string, total: number | null): LoadingSnapshot {
  return { snapshotPosition: position, entries: new Map(), total, position, received: 0, truncated: false };
}
