import { element } from "./dom";

/** A box for a condition; it is sent with Enter, and an empty one shows every row again. */
export class FilterBox {
  readonly root: HTMLFormElement;
  private readonly input: HTMLInputElement;
  private readonly clear = element("button", { type: "button", class: "quiet clear", "aria-label": "Clear the filter" }, "×");
  private readonly problem: HTMLElement;
  private active = "";
  private edited = false; // by the user, since it was last sent: it is theirs until then

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
      this.ask(onFilter);
    });
    this.input.addEventListener("input", () => {
      this.edited = true;
      this.showState();
    });
    this.clear.addEventListener("click", () => {
      this.input.value = "";
      this.input.focus();
      this.ask(onFilter);
    });
    this.showState();
  }

  /** Shows which filter holds; text that the server refused stays for the user to mend. */
  show(where: string, error: string | null): void {
    this.active = where;
    if (error === null && !this.edited) this.input.value = where;
    this.problem.textContent = error ?? "";
    this.input.setAttribute("aria-invalid", String(error !== null));
    this.showState();
  }

  /** A condition that makes sense here, as a pattern to follow. */
  suggest(example: string): void {
    this.input.placeholder = example;
  }

  private ask(onFilter: (where: string) => void): void {
    this.problem.textContent = "";
    this.edited = false;
    onFilter(this.input.value);
  }

  private showState(): void {
    this.clear.hidden = this.input.value === "" && this.active === "";
    this.root.classList.toggle("active", this.active !== "");
  }
}
