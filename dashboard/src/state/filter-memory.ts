/** Remembers the filter of each view in the browser, for the next load of the page. */
export class FilterMemory {
  private readonly slot: string;

  constructor(app: string, view: string) {
    this.slot = `millstream.where.${app}.${view}`;
  }

  load(): string {
    return localStorage.getItem(this.slot) ?? "";
  }

  save(where: string): void {
    if (where === "") localStorage.removeItem(this.slot);
    else localStorage.setItem(this.slot, where);
  }
}
