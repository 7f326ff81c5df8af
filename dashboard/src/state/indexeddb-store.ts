import type { Key, Row, Rows, RowStore, StoredRows } from "@millstream/client";

/** For a larger view a new snapshot is cheaper than a copy in the browser. */
export const MAX_STORED = 20_000;
const LEASE_MS = 5_000;
const DELETE_AFTER_MS = 7 * 24 * 3_600_000;
const DATABASE = "millstream";
const VIEWS = "views";
const ROWS = "rows";

interface StoredView {
  readonly where: string;
  readonly position: string;
  /** The page that wrote it. Two tabs must not mix their rows under one position. */
  readonly writer: string;
  readonly at: number;
}

interface StoredRow {
  readonly key: Key;
  readonly row: Row;
  readonly sequence: number;
}

function done<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => {
      resolve(request.result);
    };
    request.onerror = () => {
      reject(request.error ?? new Error("IndexedDB gave no reason"));
    };
  });
}

function committed(transaction: IDBTransaction): Promise<void> {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => {
      resolve();
    };
    transaction.onabort = transaction.onerror = () => {
      reject(transaction.error ?? new Error("IndexedDB gave no reason"));
    };
  });
}

const rowsOf = (name: string): IDBKeyRange => IDBKeyRange.bound([name], [name, []]);

/**
 * Stores the rows and the position of each view in IndexedDB, so that a reloaded page continues from there.
 * Both are written in one transaction, so they always belong together.
 */
export class IndexedDbStore implements RowStore {
  private constructor(
    private readonly database: IDBDatabase,
    private readonly app: string,
    private readonly writer: string,
    private readonly clock: () => number,
  ) {}

  /** Deletes what any page of this server has stored. */
  static deleteAll(): void {
    // Without IndexedDB (a private window) there is nothing to delete.
    if ("indexedDB" in globalThis) indexedDB.deleteDatabase(DATABASE);
  }

  static async open(
    app: string,
    writer: string = Math.random().toString(36).slice(2),
    clock: () => number = Date.now,
  ): Promise<IndexedDbStore> {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore(VIEWS);
      request.result.createObjectStore(ROWS);
    };
    const store = new IndexedDbStore(await done(request), app, writer, clock);
    await store.deleteOld();
    return store;
  }

  /** The rows stored for the view under this filter, or null. */
  async load(view: string, where: string): Promise<StoredRows | null> {
    const name = this.name(view);
    const transaction = this.database.transaction([VIEWS, ROWS], "readonly");
    const about = transaction.objectStore(VIEWS).get(name) as IDBRequest<StoredView | undefined>;
    const all = transaction.objectStore(ROWS).getAll(rowsOf(name)) as IDBRequest<StoredRow[]>;
    const [stored, rows] = await Promise.all([done(about), done(all)]);
    if (stored?.where !== where) return null;
    return { position: stored.position, rows: rows.sort((a, b) => a.sequence - b.sequence) };
  }

  /** Writes the changes since the last call; false if another tab owns the view. */
  async save(view: string, where: string, rows: Rows): Promise<boolean> {
    const name = this.name(view);
    const transaction = this.database.transaction([VIEWS, ROWS], "readwrite");
    const views = transaction.objectStore(VIEWS);
    let written = true;
    const about = views.get(name) as IDBRequest<StoredView | undefined>;
    // The rows are read inside the callback: they may change between the request and its answer.
    about.onsuccess = () => {
      const stored = about.result;
      const mine = stored?.writer === this.writer;
      if (stored !== undefined && !mine && this.clock() - stored.at < LEASE_MS) {
        written = false;
        return;
      }
      const { position, unsaved } = rows;
      if (position === null) return;
      const writeAll = unsaved.all || !mine || stored.where !== where;
      rows.unsaved = { all: false, ids: new Set() };
      if (rows.truncated || rows.entries.size > MAX_STORED) {
        views.delete(name);
        transaction.objectStore(ROWS).delete(rowsOf(name));
        rows.unsaved.all = true;
        return;
      }
      this.write(transaction.objectStore(ROWS), name, rows, writeAll ? null : unsaved.ids);
      const entry: StoredView = { where, position, writer: this.writer, at: this.clock() };
      views.put(entry, name);
    };
    try {
      await committed(transaction);
    } catch (error) {
      rows.unsaved.all = true;
      throw error;
    }
    return written;
  }

  close(): void {
    this.database.close();
  }

  private write(table: IDBObjectStore, name: string, rows: Rows, ids: Set<string> | null): void {
    if (ids === null) table.delete(rowsOf(name));
    for (const id of ids ?? rows.entries.keys()) {
      const entry = rows.entries.get(id);
      if (entry === undefined) table.delete([name, id]);
      else table.put({ key: entry.key, row: entry.row, sequence: entry.sequence }, [name, id]);
    }
  }

  private async deleteOld(): Promise<void> {
    const transaction = this.database.transaction([VIEWS, ROWS], "readwrite");
    const cursor = transaction.objectStore(VIEWS).openCursor();
    cursor.onsuccess = () => {
      const at = cursor.result;
      if (at === null) return;
      if (this.clock() - (at.value as StoredView).at > DELETE_AFTER_MS) {
        transaction.objectStore(ROWS).delete(rowsOf(at.key as string));
        at.delete();
      }
      at.continue();
    };
    await committed(transaction);
  }

  private name(view: string): string {
    return `${this.app}/${view}`;
  }
}
