import { Client, RequestError } from "@millstream/client";
import { IndexedDbStore } from "../state/indexeddb-store";
import { sentence } from "../ui/format";
import { Page } from "../ui/page";
import { LoginForm } from "./login-form";
import { loginMemory } from "./login-memory";

/** Shows the page, or the login form if the server wants a login. */
export async function enter(body: HTMLElement): Promise<void> {
  const reason = loginMemory.takeReason();
  const refusal = await refusalOf(loginMemory.secret());
  if (refusal?.status === 401) {
    const held = loginMemory.secret() !== "";
    loginMemory.forget("");
    showForm(body, held ? reasonOf(refusal.message) : reason);
  } else {
    new Page(body, { secret: loginMemory.secret(), onLogout: leave }).open();
  }
}

/** Ends the login. Loading the page again is the sure way that no row of the old caller stays in memory. */
function leave(reason: string): void {
  loginMemory.forget(reasonOf(reason));
  location.reload();
}

function showForm(body: HTMLElement, reason: string): void {
  // Rows that this browser stored before the server wanted a login are not for everybody any more.
  IndexedDbStore.deleteAll();
  const form = new LoginForm(problemWith, (secret) => {
    loginMemory.save(secret);
    location.reload();
  });
  body.replaceChildren(form.root);
  form.show(reason);
}

async function problemWith(secret: string): Promise<string | null> {
  const refusal = await refusalOf(secret);
  if (refusal === null) return null;
  // Other refusals say nothing about the login: the page shows what it may show.
  if (![0, 401, 429].includes(refusal.status)) return null;
  return refusal.status === 401 ? `Not accepted. ${reasonOf(refusal.message)}` : sentence(refusal.message);
}

/** The server's reason without its advice, which is for programs. */
function reasonOf(message: string): string {
  return sentence(message.split("; ")[0] ?? "");
}

/** The refusal of a request with this login, or null; its status is 0 if the server does not answer. */
async function refusalOf(secret: string): Promise<RequestError | null> {
  const client = new Client(location.href, { credentials: () => secret });
  try {
    await client.views();
    return null;
  } catch (error) {
    return error instanceof RequestError ? error : new RequestError(0, "The server does not answer. Try again.");
  }
}
