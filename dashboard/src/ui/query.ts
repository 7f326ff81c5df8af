import { isIdentifier, kindOf, type Client, type QueryResult, type ViewDescription } from "@millstream/client";
import { element, setText } from "./dom";
import * as format from "./format";

const MAX_ROWS = 200;
const SLOT = "millstream.pipeline.sql";

/** An input for one SQL query over the current rows of all views. */
export class QueryBox {
  readonly root: HTMLElement;
  private readonly input = element("textarea", {
    id: "sql",
    rows: "4",
    spellcheck: "false",
    autocapitalize: "off",
    autocomplete: "off",
    "aria-describedby": "sql-help",
  });
  private readonly run = element("button", { type: "submit", class: "primary" }, "Run");
  private readonly examples = element("p", { class: "examples" });
  private readonly status = element("p", { class: "status", role: "status" });
  private readonly problem = element("p", { class: "problem", role: "alert" });
  private readonly result = element("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Result" });
  private running: AbortController | null = null;

  constructor(private readonly client: Client) {
    const form = element(
      "form",
      {},
      element("label", { for: "sql" }, "SQL over the views"),
      this.input,
      element("p", { class: "actions" }, this.run, element("kbd", { id: "sql-help" }, "Ctrl + Enter"), this.status),
      this.examples,
      this.problem,
    );
    this.input.value = sessionStorage.getItem(SLOT) ?? "";
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.send();
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      void this.send();
    });
    this.result.hidden = true;
    const heading = element("h2", { id: "query" }, "Query");
    this.root = element("section", { class: "query", "aria-labelledby": "query" }, heading, form, this.result);
  }

  /** Offers an example query for each view. */
  offer(views: readonly ViewDescription[]): void {
    const buttons = views.slice(0, 6).map((view) => {
      const sql = exampleFor(view);
      const button = element("button", { type: "button", class: "quiet", title: sql }, view.name);
      button.addEventListener("click", () => {
        this.input.value = sql;
        void this.send();
      });
      return button;
    });
    this.examples.replaceChildren(...buttons);
    if (this.input.value === "" && views[0] !== undefined) this.input.placeholder = exampleFor(views[0]);
  }

  private async send(): Promise<void> {
    const sql = this.input.value.trim() || this.input.placeholder;
    if (sql === "") return;
    this.input.value = sql;
    sessionStorage.setItem(SLOT, sql);
    this.running?.abort();
    const running = new AbortController();
    this.running = running;
    setText(this.problem, "");
    setText(this.status, "Running …");
    try {
      this.show(await this.client.query(sql, running.signal));
    } catch (error) {
      if (running.signal.aborted) return;
      setText(this.status, "");
      setText(this.problem, error instanceof Error ? error.message : String(error));
      this.result.hidden = true;
    }
  }

  private show(result: QueryResult): void {
    const shown = result.rows.slice(0, MAX_ROWS);
    const head = result.columns.map((column) => element("th", { scope: "col", class: kindOf(column) }, column.name));
    const body = shown.map((row) =>
      element(
        "tr",
        {},
        ...result.columns.map((column, index) => element("td", { class: kindOf(column) }, format.cell(row[index], column))),
      ),
    );
    const caption = element("caption", { class: "unseen" }, "Result of the query");
    this.result.replaceChildren(
      element("table", {}, caption, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body)),
    );
    this.result.hidden = false;
    const count = result.rows.length;
    const more = result.truncated ? ", and there are more" : shown.length < count ? `, ${MAX_ROWS} shown` : "";
    setText(this.status, `${format.number(count)} ${count === 1 ? "row" : "rows"}${more} in ${format.duration(result.elapsed_ms)}`);
  }
}

function exampleFor(view: ViewDescription): string {
  const measure = view.columns.find((column) => kindOf(column) === "number" && !isIdentifier(column.name));
  const quoted = (name: string): string => (/^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name}"`);
  const order = measure === undefined || view.key === null ? "" : ` ORDER BY ${quoted(measure.name)} DESC`;
  return `SELECT * FROM ${quoted(view.name)}${order} LIMIT 10`;
}
