import { beforeEach, describe, expect, it, vi } from "vitest";
import { Client, RequestError, type OpenConnection } from "@millstream/client";
import { Connections } from "../src/access/connections";

const PHONE: OpenConnection = {
  id: "4f19c2-1",
  caller: "key phone",
  address: "10.0.0.7",
  transport: "websocket",
  since: "2026-11-18T10:00:00.000Z",
  rate: 12.34,
  bytes: 3_400_000,
  behind: 0,
  skipped: 7,
  subscriptions: [{ kind: "view", name: "by_city", where: "n > 1" }, { kind: "stream", name: "rsvps" }],
};
const SLOW: OpenConnection = { ...PHONE, id: "4f19c2-2", caller: "", address: "10.0.0.9", since: "2026-11-18T11:00:00.000Z", behind: 1_204, skipped: 0 };

let client: Client;
let panel: Connections;

const lines = (): string[][] =>
  [...panel.root.querySelectorAll("tbody tr")].map((line) => [...line.children].map((cell) => cell.textContent));
const answerDialog = (value: string): void => {
  const dialog = panel.root.querySelector("dialog");
  expect(dialog?.open).toBe(true);
  dialog?.close(value);
};
const clickClose = (line: number): void => {
  panel.root.querySelectorAll<HTMLButtonElement>("tbody button")[line]?.click();
};

beforeEach(() => {
  client = new Client("http://127.0.0.1:1");
  panel = new Connections(client);
  document.body.replaceChildren(panel.root);
});

describe("the list of connections", () => {
  it("shows who is connected, to what, how fast and how far behind; the slowest first", () => {
    panel.paint([PHONE, SLOW]);
    expect(lines().map((cells) => cells[1])).toEqual(["10.0.0.9", "10.0.0.7"]);
    expect(lines()[1]?.slice(0, 8)).toEqual([
      "key phone", "10.0.0.7", "websocket", "view by_city where n > 1\nstream rsvps", "12.3", "0", "7", "3.4 MB",
    ]);
    expect(lines()[0]?.[5]).toBe("1,204");
    expect(panel.root.querySelector(".count")?.textContent).toBe("2");
  });

  it("keeps a line and its button while its figures change, so that the focus stays", () => {
    panel.paint([PHONE]);
    const button = panel.root.querySelector("tbody button");
    panel.paint([{ ...PHONE, rate: 99 }, SLOW]);
    expect(panel.root.querySelectorAll("tbody button")[1]).toBe(button);
    panel.paint([SLOW]);
    expect(lines()).toHaveLength(1);
  });

  it("shows a hundred of many, and says so", () => {
    panel.paint(Array.from({ length: 1_500 }, (_, index) => ({ ...PHONE, id: String(index), behind: index })));
    expect(lines()).toHaveLength(100);
    expect(panel.root.querySelector("[role=status]")?.textContent).toBe("The 100 of 1,500 connections that are furthest behind.");
  });

  it("says why there is no list", () => {
    panel.paint(null, new RequestError(403, "this needs the right admin"));
    expect(panel.root.querySelector("[role=status]")?.textContent).toBe("this needs the right admin");
  });

  it("closes a connection only after the reader has confirmed it", async () => {
    const close = vi.spyOn(client, "closeConnection").mockResolvedValue();
    panel.paint([PHONE, SLOW]);
    clickClose(1);
    answerDialog("no");
    await Promise.resolve();
    expect(close).not.toHaveBeenCalled();
    clickClose(1);
    expect(panel.root.querySelector("dialog h3")?.textContent).toBe("Close the connection of key phone (10.0.0.7)?");
    answerDialog("yes");
    await vi.waitFor(() => {
      expect(close).toHaveBeenCalledWith("4f19c2-1");
    });
    await vi.waitFor(() => {
      expect(lines()).toHaveLength(1);
    });
  });

  it("says why a connection could not be closed", async () => {
    vi.spyOn(client, "closeConnection").mockRejectedValue(new RequestError(404, "this server has no connection '4f19c2-1'"));
    panel.paint([PHONE]);
    clickClose(0);
    answerDialog("yes");
    await vi.waitFor(() => {
      expect(panel.root.querySelector("[role=alert]")?.textContent).toBe("this server has no connection '4f19c2-1'");
    });
  });

  it("asks the server only while it is open", async () => {
    const stop = vi.fn();
    const watch = vi.spyOn(client, "watchConnections").mockReturnValue(stop);
    expect(watch).not.toHaveBeenCalled();
    panel.root.open = true;
    panel.root.dispatchEvent(new Event("toggle"));
    expect(watch).toHaveBeenCalledOnce();
    panel.root.open = false;
    panel.root.dispatchEvent(new Event("toggle"));
    expect(stop).toHaveBeenCalledOnce();
    await Promise.resolve();
  });
});
