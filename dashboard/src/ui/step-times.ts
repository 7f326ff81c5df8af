import type { System } from "@millstream/client";
import { element, setChildren, setText } from "./dom";
import { MEASURES, STEPS, stepTimesOf, type StreamStepsStatus } from "./step-times-status";

const FEW = 4;
const ID = "step-times";

/** The times of each collecting step, for each stream. */
export class StepTimes {
  readonly root: HTMLElement;
  private readonly body = element("tbody", { id: ID, role: "rowgroup" });
  private readonly more = element("button", { type: "button", class: "quiet", "aria-controls": ID });
  private statuses: readonly StreamStepsStatus[] = [];
  private all = false;

  constructor() {
    const heading = element("h3", { id: `${ID}-heading` }, "By stream: after its arrival an event is");
    // A narrow screen lays the rows out as blocks; the roles keep the table a table for screen readers.
    const table = element("table", { role: "table", "aria-labelledby": heading.id }, ...columns(), head(), this.body);
    this.more.addEventListener("click", () => {
      this.all = !this.all;
      this.write();
    });
    this.root = element("div", { class: "cell step-times" }, heading, table, this.more);
  }

  paint(system: System): void {
    this.statuses = stepTimesOf(system);
    this.root.hidden = this.statuses.length === 0;
    this.write();
  }

  private write(): void {
    const total = this.statuses.length;
    const shown = this.all ? this.statuses : this.statuses.slice(0, FEW);
    const names = shown.map(({ stream }) => stream);
    setChildren(this.body, names, () => names.map(line));
    const figures = shown.flatMap(({ steps }) => steps.flatMap((step) => MEASURES.map((measure) => step[measure])));
    this.body.querySelectorAll("td").forEach((cell, index) => setText(cell, figures[index] ?? ""));
    this.more.hidden = total <= FEW;
    this.more.setAttribute("aria-expanded", String(this.all));
    setText(this.more, this.all ? `Show ${FEW} of ${total} streams` : `Show all ${total} streams`);
  }
}

function columns(): HTMLElement[] {
  return [element("colgroup", { span: "1", class: "name" }), ...STEPS.map(() => element("colgroup", { span: String(MEASURES.length) }))];
}

function head(): HTMLElement {
  const heading = (text: string, attributes: Readonly<Record<string, string>> = {}): HTMLElement =>
    element("th", { scope: "col", role: "columnheader", ...attributes }, text);
  const group = { scope: "colgroup", colspan: String(MEASURES.length) };
  const steps = STEPS.map(({ name }) => heading(name, group));
  const measures = STEPS.flatMap(() => MEASURES.map((measure) => heading(measure)));
  return element(
    "thead",
    { role: "rowgroup" },
    element("tr", { role: "row" }, heading("stream", { rowspan: "2" }), ...steps),
    element("tr", { role: "row" }, ...measures),
  );
}

function line(stream: string): HTMLElement {
  const cells = STEPS.flatMap(({ name }) => MEASURES.map(() => element("td", { role: "cell", "data-step": name })));
  return element("tr", { role: "row" }, element("th", { scope: "row", role: "rowheader", title: stream }, stream), ...cells);
}
