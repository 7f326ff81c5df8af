import type { System } from "../net/protocol";
import { element, fill, say } from "./dom";
import * as format from "./format";
import { intakeOf, type IntakeReading, type SourceReading, type StepReading, type Term } from "./intake-readings";
import { StepTimes } from "./step-times";

/** Quiet, below the tiers: where events come from, how fast they get in, what holds them, and that none is missing. */
export class Intake {
  readonly root: HTMLElement;
  private readonly sources = element("ul", { class: "sources" });
  private readonly steps = element("ol", { class: "steps" });
  private readonly journal = element("p", { class: "journal" });
  private readonly detail = element("p", { class: "aside" });
  private readonly meter = element("div", { class: "meter" }, element("i"));
  private readonly sum = element("p", { class: "sum" });
  private readonly verdict = element("p", { class: "aside" });
  private readonly byStream = new StepTimes();

  constructor() {
    this.root = element(
      "section",
      { class: "intake", "aria-label": "Events on their way in" },
      cell("Sources", "from", this.sources),
      cell("After its arrival an event is, on average", "times", this.steps),
      cell("Journal", "held", this.journal, this.meter, this.detail),
      cell("Counted", "counts", this.sum, this.verdict),
      this.byStream.root,
    );
    this.root.hidden = true;
  }

  /** Draws the newest answer; what was known stays when the server does not answer. */
  paint(system: System | null): void {
    this.root.classList.toggle("stale", system === null || system.tiers.collect.state === "down");
    if (system === null) return;
    this.root.hidden = false;
    this.write(intakeOf(system));
    this.byStream.paint(system);
  }

  private write(reading: IntakeReading): void {
    fill(this.sources, reading, () => [
      ...reading.sources.map(source),
      ...(reading.more > 0 ? [element("li", { class: "aside" }, `and ${reading.more} more`)] : []),
    ]);
    fill(this.steps, reading.steps, () => reading.steps.map(step));
    const { journal } = reading;
    say(this.journal, journal?.text ?? "–");
    say(this.detail, journal?.detail ?? "");
    this.meter.dataset.tone = journal?.tone ?? "good";
    this.journal.dataset.tone = journal?.tone ?? "good";
    this.meter.style.setProperty("--share", String(journal?.share ?? 0));
    fill(this.sum, [reading.accepted, reading.terms], () => equation(reading.accepted, reading.terms));
    say(this.verdict, reading.off === 0 ? "every event has its place" : `${format.number(reading.off)} are accounted for nowhere`);
    this.verdict.dataset.tone = reading.off === 0 ? "good" : "bad";
  }
}

function cell(name: string, kind: string, ...body: readonly HTMLElement[]): HTMLElement {
  return element("div", { class: `cell ${kind}` }, element("h3", {}, name), ...body);
}

function source({ stream, kind, tone, text, title }: SourceReading): HTMLElement {
  return element(
    "li",
    { "data-tone": tone, title },
    element("b", {}, stream),
    element("span", { class: "kind" }, kind),
    element("span", { class: "said" }, text),
  );
}

function step({ name, mean, p99, title }: StepReading): HTMLElement {
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
