import { describe, expect, it } from "vitest";
import { lanes, hueOf, type Runner } from "../src/pictures/race-layout";
import { slotted } from "../src/pictures/timeline";

const runner = (label: string, value: number): Runner => ({ id: label, label, value });
const none = new Map<string, number>();

describe("a race", () => {
  it("ranks the largest first and measures bars by the leader", () => {
    const result = lanes([runner("b", 5), runner("a", 20), runner("c", 10)], none, 10);
    expect(result.map(({ label, rank, share }) => [label, rank, share])).toEqual([["a", 0, 1], ["c", 1, 0.5], ["b", 2, 0.25]]);
  });

  it("has as many lanes as there is room for", () => {
    const many = Array.from({ length: 30 }, (_, n) => runner(`r${n}`, n));
    expect(lanes(many, none, 12).map((lane) => lane.value)).toEqual([29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18]);
  });

  it("lets a bar pass only by merit: equals keep their order", () => {
    const ranks = new Map([["z", 0], ["a", 1]]);
    expect(lanes([runner("a", 7), runner("z", 7)], ranks, 5).map((lane) => lane.label)).toEqual(["z", "a"]);
    expect(lanes([runner("a", 8), runner("z", 7)], ranks, 5).map((lane) => lane.label)).toEqual(["a", "z"]);
  });

  it("lets newcomers of equal value start behind, by name", () => {
    const ranks = new Map([["m", 0]]);
    expect(lanes([runner("b", 7), runner("a", 7), runner("m", 7)], ranks, 5).map((lane) => lane.label)).toEqual(["m", "a", "b"]);
  });

  it("draws nothing for zero and for negative numbers", () => {
    expect(lanes([runner("a", 0), runner("b", -3)], none, 5).map((lane) => lane.share)).toEqual([0, 0]);
    expect(lanes([runner("a", 4), runner("b", -3)], none, 5).map((lane) => lane.share)).toEqual([1, 0]);
  });

  it("gives a label its colour for good", () => {
    const labels = ["Outdoors", "Hiking", "Yoga", "Film", "Travel", "Running", "Data Science"];
    const hues = labels.map((label) => hueOf(label, 6));
    expect(hues).toEqual(labels.map((label) => hueOf(label, 6)));
    expect(new Set(hues).size).toBeGreaterThan(2);
    expect(Math.max(...hues)).toBeLessThan(6);
  });
});

describe("a timeline", () => {
  const point = (minute: number): { span: { start: number; end: number }; order: number; value: number } => {
    const start = minute * 60_000;
    return { span: { start, end: start + 60_000 }, order: start, value: 1 };
  };

  it("leaves the place of a window empty in which nothing happened", () => {
    expect(slotted([point(0), point(1), point(4)]).map(({ slot }) => slot)).toEqual([0, 1, 4]);
  });

  it("shows the last sixty places only", () => {
    const long = Array.from({ length: 200 }, (_, minute) => point(minute));
    expect(slotted(long).map(({ slot }) => slot)).toEqual(Array.from({ length: 60 }, (_, slot) => slot));
    expect(slotted([point(0), point(500), point(501)]).map(({ slot }) => slot)).toEqual([0, 1]);
  });

  it("gives a lone window the first place", () => {
    expect(slotted([point(7)]).map(({ slot }) => slot)).toEqual([0]);
  });
});
