import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { loginMemory } from "../src/access/login-memory";
import { LoginForm } from "../src/access/login-form";

let accepted: string[];
let answers: (string | null)[];
let tried: string[];
let form: LoginForm;

const input = (): HTMLInputElement => form.root.querySelector("input") ?? document.createElement("input");
const problem = (): string | undefined => form.root.querySelector("[role=alert]")?.textContent;
const type = (text: string): void => {
  input().value = text;
  form.root.querySelector("form")?.dispatchEvent(new Event("submit", { cancelable: true }));
};

beforeEach(() => {
  [accepted, answers, tried] = [[], [], []];
  form = new LoginForm(
    (secret) => {
      tried.push(secret);
      return Promise.resolve(answers.shift() ?? null);
    },
    (secret) => accepted.push(secret),
  );
  document.body.replaceChildren(form.root);
});

afterEach(() => {
  sessionStorage.clear();
});

describe("the login form", () => {
  it("hides what is typed, has a label, and says where keys come from", () => {
    expect(input().type).toBe("password");
    expect(form.root.querySelector("label")?.htmlFor).toBe(input().id);
    expect(form.root.textContent).toContain("millstream keys create");
  });

  it("gives the focus to the input, and shows why the last login ended", () => {
    form.show("The key was revoked.");
    expect(document.activeElement).toBe(input());
    expect(problem()).toBe("The key was revoked.");
  });

  it("explains a refusal, and lets the reader try again", async () => {
    answers = ["the API key is not known"];
    type("wrong");
    await vi.waitFor(() => {
      expect(problem()).toBe("the API key is not known");
    });
    expect(form.root.querySelector<HTMLButtonElement>("button[type=submit]")?.disabled).toBe(false);
    expect(input().getAttribute("aria-invalid")).toBe("true");
    type(" right\n");
    await vi.waitFor(() => {
      expect(accepted).toEqual(["right"]);
    });
  });

  it("sends nothing while it is empty or a request is under way", () => {
    type("  ");
    type("one");
    type("two");
    expect(tried).toEqual(["one"]);
  });
});

describe("the memory of a login", () => {
  it("is that of the tab, and ends with a reason that is shown once", () => {
    loginMemory.save("secret");
    sessionStorage.setItem("millstream.pipeline.sql", "SELECT 1");
    expect([loginMemory.secret(), localStorage.length]).toEqual(["secret", 0]);
    loginMemory.forget("You are logged out.");
    expect([loginMemory.secret(), sessionStorage.getItem("millstream.pipeline.sql")]).toEqual(["", null]);
    expect([loginMemory.takeReason(), loginMemory.takeReason()]).toEqual(["You are logged out.", ""]);
  });
});
