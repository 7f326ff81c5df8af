import { describe, expect, it } from "vitest";
import { rankItems, hueOf, type Item } from "../src/charts/ranking";
import { assignSlots } from "../src/charts/timeline";

const item = (label: string, value: number): Item => ({ id: label, label, value });
const none = new Map<string, number>();

describe("a bar race", () => {
  it("ranks the largest first and measures bars by the leader", () => {
    const result = rankItems([item("b", 5), item("a", 20), item("c", 10)], none, 10);
    expect(result.map(({ label, rank, share }) => [label, rank, share])).toEqual([["a", 0, 1], ["c", 1, 0.5], ["b", 2, 0.25]]);
  });

  it("has at most the given number of bars", () => {
    const many = Array.from({ length: 30 }, (_, n) => item(`r${n}`, n));
    expect(rankItems(many, none, 12).map((item) => item.value)).toEqual([29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18]);
  });

  it("lets a bar pass only a smaller one: equal bars keep their order", () => {
    const ranks = new Map([["z", 0], ["a", 1]]);
    expect(rankItems([item("a", 7), item("z", 7)], ranks, 5).map((item) => item.label)).toEqual(["z", "a"]);
    expect(rankItems([item("a", 8), item("z", 7)], ranks, 5).map((item) => item.label)).toEqual(["a", "z"]);
  });

  it("puts new bars of equal value last, by name", () => {
    const ranks = new Map([["m", 0]]);
    expect(rankItems([item("b", 7), item("a", 7), item("m", 7)], ranks, 5).map((item) => item.label)).toEqual(["m", "a", "b"]);
  });

  it("draws nothing for zero and for negative numbers", () => {
    expect(rankItems([item("a", 0), item("b", -3)], none, 5).map((item) => item.share)).toEqual([0, 0]);
    expect(rankItems([item("a", 4), item("b", -3)], none, 5).map((item) => item.share)).toEqual([1, 0]);
  });

  it("gives a label the same colour each time", () => {
    const labels = ["Outdoors", "Hiking", "Yoga", "Film", "Travel", "Running", "Data Science"];
    const hues = labels.map((label) => hueOf(label, 6));
    expect(hues).toEqual(labels.map((label) => hueOf(label, 6)));
    expect(new Set(hues).size).toBeGreaterThan(2);
    expect(Math.max(...hues)).toBeLessThan(6);
  });
});

describe("a timeline", () => {
  const point = (minute: number): { window: { start: number; end: number }; order: number; value: number } => {
    const start = minute * 60_000;
    return { window: { start, end: start + 60_000 }, order: start, value: 1 };
  };

  it("leaves the slot of a window without events empty", () => {
    expect(assignSlots([point(0), point(1), point(4)]).map(({ slot }) => slot)).toEqual([0, 1, 4]);
  });

  it("shows the last sixty slots only", () => {
    const long = Array.from({ length: 200 }, (_, minute) => point(minute));
    expect(assignSlots(long).map(({ slot }) => slot)).toEqual(Array.from({ length: 60 }, (_, slot) => slot));
    expect(assignSlots([point(0), point(500), point(501)]).map(({ slot }) => slot)).toEqual([0, 1]);
  });

  it("gives a single window the first slot", () => {
    expect(assignSlots([point(7)]).map(({ slot }) => slot)).toEqual([0]);
  });
});
