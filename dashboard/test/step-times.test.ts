import { describe, expect, it } from "vitest";
import type { CollectedStream, Latency, System } from "@millstream/client";
import { Intake } from "../src/ui/intake";
import { StepTimes } from "../src/ui/step-times";
import { stepTimesOf } from "../src/ui/step-times-status";

const took = (min: number, mean: number, p99: number, max: number): Latency => ({ p50: 7_777, min, mean, p99, max, count: 9 });

const ORDERS = { journaled_ms: took(0.2, 0.5, 2, 3), sent_ms: took(0.3, 0.6, 12, 30), latency_ms: took(1, 4.1, 800, 1_500) };

function system(names: readonly string[], streams?: Readonly<Record<string, CollectedStream>>): System {
  const up = { state: "up" };
  return {
    app: "shop",
    version: "0.1.0",
    now: "2026-11-16T16:00:00Z",
    streams: names.map((name) => ({ name, columns: [] })),
    views: [],
    tiers: { collect: { ...up, ...(streams ? { streams } : {}) }, log: up, analyze: up, serve: up },
  };
}

function painted(described: System): StepTimes {
  const shown = new StepTimes();
  shown.paint(described);
  return shown;
}

const lines = ({ root }: StepTimes): string[] =>
  [...root.querySelectorAll("tbody tr")].map((line) => [...line.children].map((cell) => cell.textContent).join(" "));

describe("the step times of streams", () => {
  it("are shown in order, each with its min, mean, p99 and max", () => {
    const shown = painted(system(["orders"], { orders: ORDERS }));
    const [steps, measures] = [...shown.root.querySelectorAll("thead tr")].map((line) => [...line.children].map((cell) => cell.textContent));
    expect(steps).toEqual(["stream", "on disk", "sent", "acknowledged"]);
    expect(measures).toEqual(["min", "mean", "p99", "max", "min", "mean", "p99", "max", "min", "mean", "p99", "max"]);
    expect(lines(shown)).toEqual(["orders 0.2 ms 0.5 ms 2.0 ms 3.0 ms 0.3 ms 0.6 ms 12 ms 30 ms 1.0 ms 4.1 ms 800 ms 1.5 s"]);
  });

  it("have a line for each stream in the pipeline's order, also before the first event", () => {
    const statuses = stepTimesOf(system(["orders", "clicks"], { clicks: { ...ORDERS, journaled_ms: null } }));
    const nothing = { min: "–", mean: "–", p99: "–", max: "–" };
    expect(statuses.map(({ stream }) => stream)).toEqual(["orders", "clicks"]);
    expect(statuses[0]?.steps).toEqual([nothing, nothing, nothing]);
    expect(statuses[1]?.steps).toEqual([
      nothing,
      { min: "0.3 ms", mean: "0.6 ms", p99: "12 ms", max: "30 ms" },
      { min: "1.0 ms", mean: "4.1 ms", p99: "800 ms", max: "1.5 s" },
    ]);
    expect(stepTimesOf(system(["orders"]))).toEqual([{ stream: "orders", steps: [nothing, nothing, nothing] }]);
  });

  it("change in place: the cells stay the same, so that nothing moves and a selection stays", () => {
    const shown = painted(system(["orders"]));
    const cells = [...shown.root.querySelectorAll("td")];
    expect(cells.map((cell) => cell.textContent)).toEqual(Array(12).fill("–"));
    shown.paint(system(["orders"], { orders: ORDERS }));
    expect([...shown.root.querySelectorAll("td")].every((cell, index) => cell === cells[index])).toBe(true);
    expect(cells[11]?.textContent).toBe("1.5 s");
    shown.paint(system(["refunds"], { orders: ORDERS }));
    expect(lines(shown)).toEqual([`refunds ${Array(12).fill("–").join(" ")}`]);
  });

  it("are shown for a few streams, and for all of them after a click, until the next click", () => {
    const names = ["a", "b", "c", "d", "e", "f"];
    const shown = painted(system(names, { f: ORDERS }));
    const more = shown.root.querySelector("button");
    const streams = (): (string | null)[] => [...shown.root.querySelectorAll("tbody th")].map((cell) => cell.textContent);
    expect(streams()).toEqual(["a", "b", "c", "d"]);
    expect([more?.textContent, more?.getAttribute("aria-expanded")]).toEqual(["Show all 6 streams", "false"]);
    more?.click();
    expect(streams()).toEqual(names);
    expect(lines(shown)[5]).toMatch(/^f 0\.2 ms .* 1\.5 s$/);
    shown.paint(system(names, { f: ORDERS }));
    expect([streams().length, more?.textContent, more?.getAttribute("aria-expanded")]).toEqual([6, "Show 4 of 6 streams", "true"]);
    more?.click();
    expect(streams()).toEqual(["a", "b", "c", "d"]);
    expect(painted(system(names.slice(2))).root.querySelector("button")?.hidden).toBe(true);
  });

  it("have headings for screen readers, with the names of streams as text", () => {
    const { root } = painted(system(["<b>orders</b>"], { "<b>orders</b>": ORDERS }));
    const table = root.querySelector("table");
    expect(root.querySelector(`#${table?.getAttribute("aria-labelledby") ?? ""}`)?.textContent).toBe("By stream: after its arrival an event is");
    expect(root.querySelector("tbody th[scope=row]")?.textContent).toBe("<b>orders</b>");
    expect(root.querySelector("b")).toBeNull();
    expect(root.querySelectorAll("th[scope=colgroup][colspan='4']").length).toBe(3);
  });

  it("are in the collecting panel, and stay when the server does not answer", () => {
    const intake = new Intake();
    intake.paint(system(["orders"], { orders: ORDERS }));
    intake.paint(null);
    expect(intake.root.classList.contains("stale")).toBe(true);
    expect(intake.root.querySelector(".step-times tbody")?.textContent).toContain("orders0.2 ms0.5 ms2.0 ms3.0 ms");
    intake.paint(system([]));
    expect(intake.root.querySelector<HTMLElement>(".step-times")?.hidden).toBe(true);
  });
});
