/** Remembers the filter of each view in the browser, for the next load of the page. */
export class FilterMemory {
  private readonly slot: string;

  /** `storage` is that of the tab if there is a login: the next reader of this browser must not see the filter. */
  constructor(
    app: string,
    view: string,
    private readonly storage: Storage = localStorage,
  ) {
    this.slot = `millstream.where.${app}.${view}`;
  }

  load(): string {
    return this.storage.getItem(this.slot) ?? "";
  }

  save(where: string): void {
    if (where === "") this.storage.removeItem(this.slot);
    else this.storage.setItem(this.slot, where);
  }
}
