import { element } from "./dom";

/** An input for a filter condition. Enter sends it; an empty one shows all rows again. */
export class FilterBox {
  readonly root: HTMLFormElement;
  private readonly input: HTMLInputElement;
  private readonly clear = element("button", { type: "button", class: "quiet clear", "aria-label": "Clear the filter" }, "×");
  private readonly problem: HTMLElement;
  private active = "";
  /** True if the user changed the text since it was last sent; it is not overwritten then. */
  private edited = false;

  constructor(view: string, onFilter: (where: string) => void) {
    const id = `where-${view}`;
    this.input = element("input", {
      id,
      type: "text",
      name: "where",
      autocomplete: "off",
      autocapitalize: "off",
      spellcheck: "false",
      enterkeyhint: "go",
      "aria-describedby": `${id}-problem`,
    });
    this.problem = element("p", { id: `${id}-problem`, class: "problem", role: "alert" });
    this.root = element(
      "form",
      { class: "filter" },
      element("label", { for: id }, "where"),
      this.input,
      this.clear,
      element("button", { type: "submit", class: "unseen" }, "Filter"),
      this.problem,
    );
    this.root.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send(onFilter);
    });
    this.input.addEventListener("input", () => {
      this.edited = true;
      this.showState();
    });
    this.clear.addEventListener("click", () => {
      this.input.value = "";
      this.input.focus();
      this.send(onFilter);
    });
    this.showState();
  }

  /** Shows the filter in effect. A text that the server refused stays for the user to correct. */
  show(where: string, error: string | null): void {
    this.active = where;
    if (error === null && !this.edited) this.input.value = where;
    this.problem.textContent = error ?? "";
    this.input.setAttribute("aria-invalid", String(error !== null));
    this.showState();
  }

  /** Shows an example of a condition for this view. */
  suggest(example: string): void {
    this.input.placeholder = example;
  }

  private send(onFilter: (where: string) => void): void {
    this.problem.textContent = "";
    this.edited = false;
    onFilter(this.input.value);
  }

  private showState(): void {
    this.clear.hidden = this.input.value === "" && this.active === "";
    this.root.classList.toggle("active", this.active !== "");
  }
}
