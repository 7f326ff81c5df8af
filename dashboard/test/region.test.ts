import { expect, test } from "vitest";
import { chooseExtent, region, type Extent } from "../src/charts/region";

const OSAKA: Extent = { south: 34.68, north: 34.7, west: 135.49, east: 135.51 };
const corners = (extent: Extent): { lat: number; lon: number }[] => [
  { lat: extent.south, lon: extent.west },
  { lat: extent.north, lon: extent.east },
];

test("places of several cities are on the map of the world", () => {
  expect(chooseExtent(null, [...corners(OSAKA), { lat: 38.7, lon: -9.1 }])).toBeNull();
});

test("one place alone is on the map of the world", () => {
  expect(chooseExtent(null, [{ lat: 34.69, lon: 135.5 }])).toBeNull();
});

test("places of one city get a map of it, with room around them", () => {
  const shown = chooseExtent(null, corners(OSAKA));
  expect(shown?.south).toBeLessThan(OSAKA.south);
  expect(shown?.east).toBeGreaterThan(OSAKA.east);
});

test("a place that moves a little does not change the map, one that leaves it does", () => {
  const shown = chooseExtent(null, corners(OSAKA));
  const moved = corners({ ...OSAKA, north: OSAKA.north + 0.001 });
  expect(chooseExtent(shown, moved)).toBe(shown);
  expect(chooseExtent(shown, corners({ ...OSAKA, north: OSAKA.north + 0.01 }))).not.toBe(shown);
  expect(chooseExtent(shown, [])).toBe(shown);
});

test("a filter that leaves places of a part of the city brings a closer map", () => {
  const shown = chooseExtent(null, corners(OSAKA));
  const part = chooseExtent(shown, corners({ south: 34.69, north: 34.692, west: 135.5, east: 135.502 }));
  expect(part).not.toBe(shown);
  expect(part?.west).toBeGreaterThan(135.499);
});

test("north is up, east is right, and the places fill the map", () => {
  const map = region(800, OSAKA);
  const inside = { south: 34.6801, north: 34.6999, west: 135.4901, east: 135.5099 };
  const [southWest, northEast] = corners(inside).map(({ lat, lon }) => map.place(lat, lon));
  expect(southWest?.y).toBeCloseTo(map.height * 0.995);
  expect(northEast?.y).toBeCloseTo(map.height * 0.005);
  expect(southWest?.x ?? 0).toBeLessThan(northEast?.x ?? 0);
  expect(map.place(38.7, -9.1)).toBeNull();
});
