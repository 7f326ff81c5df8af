import type { Key, Message, Row } from "../net/protocol";

export interface Entry {
  readonly id: string;
  readonly key: Key;
  readonly row: Row;
  /** Grows with every change of the view, so that a picture can tell what it has not seen. */
  readonly sequence: number;
}

/** More keys than this are not held: a page is no place for a million rows. */
export const MOST_ROWS = 50_000;
/** How many of the newest rows of a view without key are held. */
export const MOST_EVENTS = 200;

/**
 * The rows of one subscription, as the messages so far make them.
 * `position` is the place to go on from; it is null until the rows stand for a position.
 */
export class Rows {
  readonly entries = new Map<string, Entry>();
  position: string | null = null;
  /** True when keys were left out because there are more than MOST_ROWS. */
  overflowed = false;
  /** Rows up to this sequence came in a snapshot or from the store, not as a change. */
  settled = 0;
  /** What the store has not written yet: everything, or these ids. */
  unsaved: { all: boolean; readonly ids: Set<string> } = { all: true, ids: new Set() };
  private sequence = 0;

  /** Takes one message in; true if a row may look different now. */
  apply(message: Message): boolean {
    switch (message.type) {
      case "snapshot":
        this.replace(message.rows, message.position);
        return true;
      case "change":
        // A change means nothing without the rows that it changes: it is of a subscription before.
        if (this.position === null) return false;
        this.position = message.position;
        if (message.op === "delete" || message.row === null) return this.remove(message.key);
        this.put(message.key, message.row);
        return true;
      case "gap":
        // The rows stay on the screen until the snapshot comes, but nothing may resume from them.
        this.position = null;
        return false;
      default:
        return false;
    }
  }

  /** Takes rows and position as one, from a snapshot or from what an earlier page stored. */
  replace(rows: Iterable<{ readonly key: Key; readonly row: Row }>, position: string): void {
    this.entries.clear();
    this.overflowed = false;
    for (const { key, row } of rows) this.put(key, row);
    this.settled = this.sequence;
    this.position = position;
    this.unsaved = { all: true, ids: new Set() };
  }

  private put(key: Key, row: Row): void {
    const sequence = ++this.sequence;
    const id = key === null ? `#${sequence}` : JSON.stringify(key);
    if (key !== null && this.entries.size >= MOST_ROWS && !this.entries.has(id)) {
      this.overflowed = true;
      return;
    }
    this.entries.set(id, { id, key, row, sequence });
    this.mark(id);
    if (key === null) this.forgetOldest();
  }

  private remove(key: Key): boolean {
    const id = JSON.stringify(key);
    this.mark(id);
    return this.entries.delete(id);
  }

  private forgetOldest(): void {
    if (this.entries.size <= MOST_EVENTS) return;
    const oldest = this.entries.keys().next();
    if (oldest.done === true) return;
    this.entries.delete(oldest.value);
    this.mark(oldest.value);
  }

  private mark(id: string): void {
    if (this.unsaved.all) return;
    this.unsaved.ids.add(id);
    // A hidden tab's timers may rest for a minute: the list of what to write must not grow with it.
    if (this.unsaved.ids.size > MOST_ROWS) this.unsaved = { all: true, ids: new Set() };
  }
}
