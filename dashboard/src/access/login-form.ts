import { element, setText } from "../ui/dom";
import { mark, themeButton } from "../ui/header";

/** Tries a key or token. Resolves to null if the server accepts it, else to the reason for the reader. */
export type TryLogin = (secret: string) => Promise<string | null>;

/** The form that asks for a key or token, instead of the page. */
export class LoginForm {
  readonly root: HTMLElement;
  private readonly input = element("input", {
    id: "secret",
    type: "password",
    name: "secret",
    required: "",
    autocomplete: "off",
    autocapitalize: "off",
    spellcheck: "false",
    "aria-describedby": "login-problem login-help",
  });
  private readonly button = element("button", { type: "submit", class: "primary" }, "Log in");
  private readonly problem = element("p", { id: "login-problem", class: "problem", role: "alert" });

  /** `onLogin` is called with the key or token that the server accepted. */
  constructor(
    private readonly tryLogin: TryLogin,
    private readonly onLogin: (secret: string) => void,
  ) {
    const form = element(
      "form",
      { class: "login", "aria-labelledby": "login-title" },
      element("div", { class: "title" }, mark(), element("h1", { id: "login-title" }, "Log in to Millstream")),
      element("label", { for: "secret" }, "API key or token"),
      this.input,
      this.problem,
      element("p", { class: "actions" }, this.button),
      help(),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.submit();
    });
    this.root = element("main", { class: "entrance" }, form, themeButton());
  }

  /** Shows the form, and why the reader has to log in again. */
  show(reason: string): void {
    setText(this.problem, reason);
    this.input.focus();
  }

  private async submit(): Promise<void> {
    const secret = this.input.value.trim();
    if (secret === "" || this.button.disabled) return;
    this.button.disabled = true;
    setText(this.button, "Checking …");
    const reason = await this.tryLogin(secret);
    if (reason === null) {
      this.onLogin(secret);
      return;
    }
    this.button.disabled = false;
    setText(this.button, "Log in");
    setText(this.problem, reason);
    this.input.setAttribute("aria-invalid", "true");
    this.input.select();
    this.input.focus();
  }
}

function help(): HTMLElement {
  return element(
    "div",
    { class: "login-help", id: "login-help" },
    element(
      "p",
      {},
      "No key yet? Whoever runs this server makes one with ",
      element("code", {}, 'millstream keys create NAME --read "*"'),
      ". A token comes from your company's login.",
    ),
    element("p", {}, "The key stays in this tab until you log out or close it. It is not stored on disk and is never part of an address."),
  );
}
