import type { System } from "../net/protocol";
import { element, fill, say } from "./dom";
import { MEASURES, STEPS, stepTimesOf, type StreamStepsReading } from "./step-times-readings";

const FEW = 4;
const ID = "step-times";

/** How long each step of an event's way in takes, stream by stream. */
export class StepTimes {
  readonly root: HTMLElement;
  private readonly body = element("tbody", { id: ID, role: "rowgroup" });
  private readonly more = element("button", { type: "button", class: "quiet", "aria-controls": ID });
  private readings: readonly StreamStepsReading[] = [];
  private all = false;

  constructor() {
    const heading = element("h3", { id: `${ID}-heading` }, "By stream: after its arrival an event is");
    // A narrow screen lays the lines out as blocks; the roles keep the table a table for those who hear it.
    const table = element("table", { role: "table", "aria-labelledby": heading.id }, ...columns(), head(), this.body);
    this.more.addEventListener("click", () => {
      this.all = !this.all;
      this.write();
    });
    this.root = element("div", { class: "cell step-times" }, heading, table, this.more);
  }

  paint(system: System): void {
    this.readings = stepTimesOf(system);
    this.root.hidden = this.readings.length === 0;
    this.write();
  }

  private write(): void {
    const total = this.readings.length;
    const shown = this.all ? this.readings : this.readings.slice(0, FEW);
    const names = shown.map(({ stream }) => stream);
    fill(this.body, names, () => names.map(line));
    const figures = shown.flatMap(({ steps }) => steps.flatMap((step) => MEASURES.map((measure) => step[measure])));
    this.body.querySelectorAll("td").forEach((cell, index) => say(cell, figures[index] ?? ""));
    this.more.hidden = total <= FEW;
    this.more.setAttribute("aria-expanded", String(this.all));
    say(this.more, this.all ? `Show ${FEW} of ${total} streams` : `Show all ${total} streams`);
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
