import type { Client, OpenConnection, OpenSubscription, RequestError } from "@millstream/client";
import { ConfirmDialog } from "./confirm-dialog";
import { element, setText } from "../ui/dom";
import * as format from "../ui/format";

const COLUMNS = ["caller", "address", "transport", "subscriptions", "messages/s", "behind", "skipped", "sent", "since"] as const;
const NUMBERS: readonly string[] = ["messages/s", "behind", "skipped", "sent"];
/** A table of thousands of lines helps nobody; those that are furthest behind come first. */
const MAX_SHOWN = 100;

interface Line {
  readonly row: HTMLTableRowElement;
  readonly cells: readonly HTMLTableCellElement[];
}

/** The clients of this server, and a way to close a connection. For callers with the right `admin`. */
export class Connections {
  readonly root: HTMLDetailsElement;
  private readonly count = element("span", { class: "count" });
  private readonly status = element("p", { class: "status", role: "status" });
  private readonly problem = element("p", { class: "problem", role: "alert" });
  private readonly body = element("tbody");
  private readonly lines = new Map<string, Line>();
  private readonly dialog = new ConfirmDialog();
  private stopWatching: (() => void) | null = null;

  constructor(private readonly client: Client) {
    const head = element(
      "tr",
      {},
      ...COLUMNS.map((name) => element("th", { scope: "col", ...(NUMBERS.includes(name) ? { class: "number" } : {}) }, name)),
      element("th", { scope: "col" }, element("span", { class: "unseen" }, "action")),
    );
    const table = element("table", {}, element("caption", { class: "unseen" }, "Open connections"), element("thead", {}, head), this.body);
    const scroller = element("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Open connections" }, table);
    this.root = element(
      "details",
      { class: "connections" },
      element("summary", {}, element("h2", {}, "Connections"), this.count),
      this.problem,
      this.status,
      scroller,
      this.dialog.root,
    );
    // The list is requested only while somebody looks at it.
    this.root.addEventListener("toggle", () => {
      if (this.root.open) this.watch();
      else this.stop();
    });
  }

  stop(): void {
    this.stopWatching?.();
    this.stopWatching = null;
  }

  private watch(): void {
    this.stopWatching ??= this.client.watchConnections((connections, refusal) => {
      this.paint(connections, refusal);
    });
  }

  paint(connections: readonly OpenConnection[] | null, refusal: RequestError | null = null): void {
    if (connections === null) {
      setText(this.status, refusal?.message ?? "The server does not answer.");
      return;
    }
    const shown = [...connections].sort((a, b) => b.behind - a.behind || a.since.localeCompare(b.since)).slice(0, MAX_SHOWN);
    setText(this.count, format.number(connections.length));
    setText(this.status, statusOf(connections.length, shown.length));
    const kept = new Set(shown.map(({ id }) => id));
    for (const [id, { row }] of this.lines) {
      if (kept.has(id)) continue;
      row.remove();
      this.lines.delete(id);
    }
    let at: Element | null = this.body.firstElementChild;
    for (const connection of shown) {
      const line = this.lines.get(connection.id) ?? this.line(connection);
      paintLine(line, connection);
      if (line.row === at) at = at.nextElementSibling;
      else this.body.insertBefore(line.row, at);
    }
  }

  private line(connection: OpenConnection): Line {
    const cells = COLUMNS.map((name) => element("td", NUMBERS.includes(name) ? { class: "number" } : {}));
    const button = element("button", { type: "button", class: "quiet danger", "aria-label": `Close the connection of ${nameOf(connection)}` }, "Close");
    button.addEventListener("click", () => {
      void this.close(connection);
    });
    const line = { row: element("tr", { "data-connection": connection.id }, ...cells, element("td", {}, button)), cells };
    this.lines.set(connection.id, line);
    return line;
  }

  private async close(connection: OpenConnection): Promise<void> {
    const sure = await this.dialog.ask(
      `Close the connection of ${nameOf(connection)}?`,
      "The client is told not to connect again by itself. Its login stays valid: revoke the key to keep it out.",
      "Close connection",
    );
    if (!sure) return;
    setText(this.problem, "");
    try {
      await this.client.closeConnection(connection.id);
      this.lines.get(connection.id)?.row.remove();
      this.lines.delete(connection.id);
    } catch (error) {
      setText(this.problem, error instanceof Error ? error.message : String(error));
    }
  }
}

function statusOf(all: number, shown: number): string {
  if (all === 0) return "No client is connected.";
  return shown < all ? `The ${shown} of ${format.number(all)} connections that are furthest behind.` : "";
}

function nameOf({ caller, address }: OpenConnection): string {
  return caller === "" ? address : `${caller} (${address})`;
}

function paintLine({ cells }: Line, connection: OpenConnection): void {
  const texts = [
    connection.caller === "" ? "–" : connection.caller,
    connection.address,
    connection.transport,
    connection.subscriptions.map(nameOfSubscription).join("\n") || "–",
    format.rate(connection.rate),
    format.number(connection.behind),
    format.number(skippedOf(connection)),
    format.bytes(connection.bytes),
    format.time(Date.parse(connection.since)),
  ];
  texts.forEach((text, index) => {
    const cell = cells[index];
    if (cell === undefined || !setText(cell, text)) return;
    cell.title = text.length > 24 ? text : "";
  });
  cells[5]?.classList.toggle("warm", connection.behind > 0);
  cells[6]?.classList.toggle("warm", skippedOf(connection) > 0);
}

function skippedOf({ skipped, subscriptions }: OpenConnection): number {
  return skipped ?? subscriptions.reduce((sum, each) => sum + (each.skipped ?? 0), 0);
}

function nameOfSubscription({ kind, name, where }: OpenSubscription): string {
  return `${kind} ${name}${where === undefined || where === "" ? "" : ` where ${where}`}`;
}
