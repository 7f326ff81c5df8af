import type { System } from "@millstream/client";
import { element, setChildren, setText } from "./dom";
import * as format from "./format";
import { intakeOf, type IntakeStatus, type SourceStatus, type StepStatus, type Term } from "./intake-status";
import { StepTimes } from "./step-times";

/** The panel about collecting: sources, step times, journal, and the sum of all events. */
export class Intake {
  readonly root: HTMLElement;
  private readonly sources = element("ul", { class: "sources" });
  private readonly steps = element("ol", { class: "steps" });
  private readonly journal = element("p", { class: "journal" });
  private readonly detail = element("p", { class: "aside" });
  private readonly meter = element("div", { class: "meter" }, element("i"));
  private readonly sum = element("p", { class: "sum" });
  private readonly result = element("p", { class: "aside" });
  private readonly byStream = new StepTimes();

  constructor() {
    this.root = element(
      "section",
      { class: "intake", "aria-label": "Collecting" },
      cell("Sources", "from", this.sources),
      cell("After its arrival an event is, on average", "times", this.steps),
      cell("Journal", "held", this.journal, this.meter, this.detail),
      cell("Counted", "counts", this.sum, this.result),
      this.byStream.root,
    );
    this.root.hidden = true;
  }

  /** Shows the newest description; the last one stays when the server does not answer. */
  paint(system: System | null): void {
    this.root.classList.toggle("stale", system === null || system.tiers.collect.state === "down");
    if (system === null) return;
    this.root.hidden = false;
    this.write(intakeOf(system));
    this.byStream.paint(system);
  }

  private write(status: IntakeStatus): void {
    setChildren(this.sources, status, () => [
      ...status.sources.map(source),
      ...(status.more > 0 ? [element("li", { class: "aside" }, `and ${status.more} more`)] : []),
    ]);
    setChildren(this.steps, status.steps, () => status.steps.map(step));
    const { journal } = status;
    setText(this.journal, journal?.text ?? "–");
    setText(this.detail, journal?.detail ?? "");
    this.meter.dataset.tone = journal?.tone ?? "good";
    this.journal.dataset.tone = journal?.tone ?? "good";
    this.meter.style.setProperty("--share", String(journal?.share ?? 0));
    setChildren(this.sum, [status.accepted, status.terms], () => equation(status.accepted, status.terms));
    setText(this.result, status.unaccounted === 0 ? "every event is accounted for" : `${format.number(status.unaccounted)} are unaccounted for`);
    this.result.dataset.tone = status.unaccounted === 0 ? "good" : "bad";
  }
}

function cell(name: string, kind: string, ...body: readonly HTMLElement[]): HTMLElement {
  return element("div", { class: `cell ${kind}` }, element("h3", {}, name), ...body);
}

function source({ stream, kind, tone, text, title }: SourceStatus): HTMLElement {
  return element(
    "li",
    { "data-tone": tone, title },
    element("b", {}, stream),
    element("span", { class: "kind" }, kind),
    element("span", { class: "said" }, text),
  );
}

function step({ name, mean, p99, title }: StepStatus): HTMLElement {
  const parts = [element("span", { class: "name" }, name), element("b", {}, mean), element("span", { class: "aside" }, p99)];
  return element("li", title === "" ? {} : { title }, ...parts);
}

function equation(accepted: number, terms: readonly Term[]): Node[] {
  const part = (sign: string, count: number, name: string, tone = ""): HTMLElement =>
    element("span", tone === "" ? {} : { "data-tone": tone }, sign, element("b", {}, format.number(count)), ` ${name}`);
  return [
    part("", accepted, "accepted"),
    ...terms.map(({ name, count, tone }, index) => part(index === 0 ? "= " : "+ ", count, name, tone)),
  ];
}
