import type { Key, Message, Row } from "./messages.js";

export interface Entry {
  readonly id: string;
  readonly key: Key;
  readonly row: Row;
  /** Grows with every change of the view, so that a reader can find the rows that are new to it. */
  readonly sequence: number;
}

/** The most keys that are held: a client does not need a million rows. */
export const MAX_ROWS = 50_000;
/** The number of newest rows that are held of a view without a key. */
export const MAX_EVENTS = 200;

/** The rows of one subscription after the messages received so far. */
export class Rows {
  readonly entries = new Map<string, Entry>();
  /** The position to continue from; null while the rows belong to no position. */
  position: string | null = null;
  /** True when keys were left out because there are more than MAX_ROWS. */
  truncated = false;
  /** Rows up to this sequence came in a snapshot or from the store; later ones came as changes. */
  snapshotSequence = 0;
  /** The rows that the store has not written yet: all of them, or these ids. */
  unsaved: { all: boolean; readonly ids: Set<string> } = { all: true, ids: new Set() };
  private sequence = 0;

  /** Applies one message; true if a row may have changed. */
  apply(message: Message): boolean {
    switch (message.type) {
      case "snapshot":
        this.replace(message.rows, message.position);
        return true;
      case "change":
        // Without rows that belong to a position, the change is of an earlier subscription.
        if (this.position === null) return false;
        this.position = message.position;
        if (message.op === "delete" || message.row === null) return this.remove(message.key);
        this.upsert(message.key, message.row);
        return true;
      case "gap":
        // The rows stay visible until the snapshot arrives, but no subscription may continue from them.
        this.position = null;
        return false;
      default:
        return false;
    }
  }

  /** Replaces all rows and the position, from a snapshot or from the store. */
  replace(rows: Iterable<{ readonly key: Key; readonly row: Row }>, position: string): void {
    this.entries.clear();
    this.truncated = false;
    for (const { key, row } of rows) this.upsert(key, row);
    this.snapshotSequence = this.sequence;
    this.position = position;
    this.unsaved = { all: true, ids: new Set() };
  }

  private upsert(key: Key, row: Row): void {
    const sequence = ++this.sequence;
    const id = key === null ? `#${sequence}` : JSON.stringify(key);
    if (key !== null && this.entries.size >= MAX_ROWS && !this.entries.has(id)) {
      this.truncated = true;
      return;
    }
    this.entries.set(id, { id, key, row, sequence });
    this.markUnsaved(id);
    if (key === null) this.evictOldest();
  }

  private remove(key: Key): boolean {
    const id = JSON.stringify(key);
    this.markUnsaved(id);
    return this.entries.delete(id);
  }

  private evictOldest(): void {
    if (this.entries.size <= MAX_EVENTS) return;
    const oldest = this.entries.keys().next();
    if (oldest.done === true) return;
    this.entries.delete(oldest.value);
    this.markUnsaved(oldest.value);
  }

  private markUnsaved(id: string): void {
    if (this.unsaved.all) return;
    this.unsaved.ids.add(id);
    // A browser may stop a hidden tab's timers for a minute: the set must not grow without bound meanwhile.
    if (this.unsaved.ids.size > MAX_ROWS) this.unsaved = { all: true, ids: new Set() };
  }
}
