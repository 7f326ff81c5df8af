import { type Column, defaultOrder, type Entry, firstRows, kindOf, ROW_STATE, type Rows, type Sort, type ViewDescription } from "@millstream/client";
import { element, setText } from "./dom";
import * as format from "./format";
import { color, onTheme } from "./theme";

const MAX_FLASHES = 48;
const FEW = 8;
const MANY = 100;

interface Line {
  readonly row: HTMLTableRowElement;
  readonly cells: readonly HTMLTableCellElement[];
  sequence: number;
}

/** The first rows of a view in order. A cell lights up when its text changes. */
export class LiveTable {
  readonly root: HTMLElement;
  private readonly body = element("tbody");
  private readonly lines = new Map<string, Line>();
  private readonly headings = new Map<string, HTMLTableCellElement>();
  private readonly more = element("button", { type: "button", class: "quiet" });
  private readonly columns: readonly Column[];
  private chosen: Sort | null = null;
  private count: number;
  private drawnOnce = false;

  constructor(
    private readonly view: ViewDescription,
    private readonly requestPaint: () => void,
    hidden: readonly string[] = [],
    private readonly few = FEW,
  ) {
    this.count = few;
    this.columns = view.columns.filter((column) => !hidden.includes(column.name));
    const head = element("tr", {}, ...this.columns.map((column) => this.heading(column)));
    const caption = element("caption", { class: "unseen" }, `Rows of ${view.name}`);
    const table = element("table", {}, caption, element("thead", {}, head), this.body);
    const scroller = element(
      "div",
      { class: "scroller", tabindex: "0", role: "region", "aria-label": `Rows of ${view.name}` },
      table,
    );
    this.more.addEventListener("click", () => {
      this.count = this.count === MANY ? this.few : MANY;
      this.requestPaint();
    });
    this.root = element("div", { class: "rows" }, scroller, this.more);
  }

  paint(rows: Rows): void {
    const order = this.chosen === null ? defaultOrder(this.view) : [this.chosen];
    const shown = firstRows(rows, order, this.count);
    // If most rows are new, lighting all of them up would show nothing.
    const fresh = shown.filter((entry) => !this.lines.has(entry.id)).length;
    const flashes = { left: this.drawnOnce ? MAX_FLASHES : 0, rows: fresh * 2 <= shown.length };
    const now = Date.now();
    const kept = new Set(shown.map((entry) => entry.id));
    for (const [id, line] of this.lines) {
      if (kept.has(id)) continue;
      line.row.remove();
      this.lines.delete(id);
    }
    let at: Element | null = this.body.firstElementChild;
    for (const entry of shown) {
      const line = this.lines.get(entry.id) ?? this.line(entry);
      this.updateLine(line, entry, now, flashes);
      if (line.row === at) at = at.nextElementSibling;
      else this.body.insertBefore(line.row, at);
    }
    this.drawnOnce ||= shown.length > 0;
    this.paintMoreButton(rows);
  }

  private heading(column: Column): HTMLTableCellElement {
    const button = element("button", { type: "button" }, column.name === ROW_STATE ? "state" : column.name);
    const cell = element("th", { scope: "col", class: kindOf(column), title: column.type }, button);
    button.addEventListener("click", () => {
      this.sortBy(column);
    });
    this.headings.set(column.name, cell);
    return cell;
  }

  /** Numbers and times start with the largest. A third click returns to the default order. */
  private sortBy(column: Column): void {
    const descendingFirst = !["text", "other"].includes(kindOf(column));
    const same = this.chosen?.column === column.name;
    if (!same) this.chosen = { column: column.name, descending: descendingFirst };
    else if (this.chosen?.descending === descendingFirst) this.chosen = { column: column.name, descending: !descendingFirst };
    else this.chosen = null;
    for (const [name, cell] of this.headings) {
      if (this.chosen?.column !== name) cell.removeAttribute("aria-sort");
      else cell.setAttribute("aria-sort", this.chosen.descending ? "descending" : "ascending");
    }
    this.requestPaint();
  }

  private line(entry: Entry): Line {
    const cells = this.columns.map((column) => element("td", { class: kindOf(column) }));
    const line: Line = { row: element("tr", {}, ...cells), cells, sequence: -1 };
    this.lines.set(entry.id, line);
    return line;
  }

  private updateLine(line: Line, entry: Entry, now: number, flashes: { left: number; rows: boolean }): void {
    if (line.sequence === entry.sequence) return;
    const fresh = line.sequence === -1;
    line.sequence = entry.sequence;
    this.columns.forEach((column, index) => {
      const cell = line.cells[index];
      if (cell === undefined) return;
      const text = format.cell(entry.row[column.name], column, now);
      if (!(column.name === ROW_STATE ? setState(cell, text) : setText(cell, text))) return;
      cell.title = text.length > 24 ? text : "";
      if (fresh || flashes.left-- <= 0) return;
      flash(cell);
    });
    if (fresh && flashes.rows && flashes.left-- > 0) flash(line.row);
  }

  private paintMoreButton(rows: Rows): void {
    const total = rows.entries.size;
    this.more.hidden = total <= this.few;
    const all = format.number(total) + (rows.truncated ? "+" : "");
    setText(this.more, this.count === MANY ? `Show ${this.few} of ${all} rows` : `Show more of ${all} rows`);
  }
}

const STATE_TITLES: Readonly<Record<string, string>> = {
  provisional: "More events may arrive for this window",
  final: "The watermark has passed this window's end",
  corrected: "It changed after it had been final",
};

/** Shows a row's state as a badge: a word, and a colour in addition. */
function setState(cell: HTMLElement, state: string): boolean {
  if (cell.textContent === state) return false;
  const badge = element("span", { class: `state ${state in STATE_TITLES ? state : ""}`.trim() }, state);
  badge.title = STATE_TITLES[state] ?? "";
  cell.replaceChildren(badge);
  return true;
}

let flashColor = "";
onTheme(() => {
  flashColor = color("flash");
});

/** Fades a colour. It moves nothing, so it stays with reduced motion too. */
function flash(target: HTMLElement): void {
  target.animate([{ backgroundColor: flashColor }, { backgroundColor: "transparent" }], {
    duration: 1_100,
    easing: "ease-out",
  });
}
