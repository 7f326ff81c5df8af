import { element, setText } from "../ui/dom";

/** Asks the reader to confirm a step that cannot be undone. */
export class ConfirmDialog {
  readonly root: HTMLDialogElement;
  private readonly question = element("h3", { id: "confirm-question" });
  private readonly consequence = element("p", { id: "confirm-consequence" });
  private readonly yes = element("button", { type: "submit", value: "yes", class: "primary danger" });

  constructor() {
    const no = element("button", { type: "submit", value: "no", class: "secondary", autofocus: "" }, "Cancel");
    this.root = element(
      "dialog",
      { class: "confirm", "aria-labelledby": "confirm-question", "aria-describedby": "confirm-consequence" },
      element("form", { method: "dialog" }, this.question, this.consequence, element("p", { class: "actions" }, no, this.yes)),
    );
  }

  /** True if the reader chose `yes`; Escape and `Cancel` mean no. */
  ask(question: string, consequence: string, yes: string): Promise<boolean> {
    setText(this.question, question);
    setText(this.consequence, consequence);
    setText(this.yes, yes);
    this.root.returnValue = "no";
    this.root.showModal();
    return new Promise((resolve) => {
      this.root.addEventListener(
        "close",
        () => {
          resolve(this.root.returnValue === "yes");
        },
        { once: true },
      );
    });
  }
}
