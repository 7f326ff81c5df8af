import type { Dot, World } from "./world";

/** A part of the world, in degrees. */
export interface Extent {
  readonly south: number;
  readonly north: number;
  readonly west: number;
  readonly east: number;
}

export interface Place {
  readonly lat: number;
  readonly lon: number;
}

/** Places that lie closer together than this, in degrees, are one dot on a map of the world. */
const WIDEST = 1;
/** Room around the places, so that a place that moves does not change the map at once. */
const MARGIN = 0.15;
/** A map on which the places take less than this share is replaced by a closer one. */
const SMALLEST_SHARE = 0.25;
const ASPECT = 0.5;

/** The extent to show: null for the world. `shown` stays as long as it fits, so that the map is calm. */
export function chooseExtent(shown: Extent | null, places: Iterable<Place>): Extent | null {
  const found = extentOf(places);
  if (found === null) return shown;
  const size = sizeOf(found);
  if (size === 0 || size > WIDEST) return null;
  const fits = shown !== null && contains(shown, found) && size > sizeOf(shown) * SMALLEST_SHARE;
  return fits ? shown : widen(found, size * MARGIN);
}

/** A map of this extent: a sheet of dots, because land has no shape at this scale. */
export function region(width: number, extent: Extent): World {
  const height = width * ASPECT;
  const lat = (extent.north + extent.south) / 2;
  const lon = (extent.east + extent.west) / 2;
  const shrink = Math.cos((lat * Math.PI) / 180);
  const scale = Math.min(height / (extent.north - extent.south), width / ((extent.east - extent.west) * shrink));
  const spacing = Math.max(4, width / 190);
  return {
    width,
    height,
    spacing,
    dots: sheet(width, height, spacing * 3),
    place(atLat, atLon) {
      const x = width / 2 + (atLon - lon) * shrink * scale;
      const y = height / 2 - (atLat - lat) * scale;
      return x < 0 || x > width || y < 0 || y > height ? null : { x, y };
    },
  };
}

function extentOf(places: Iterable<Place>): Extent | null {
  let [south, north, west, east] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const { lat, lon } of places) {
    south = Math.min(south, lat);
    north = Math.max(north, lat);
    west = Math.min(west, lon);
    east = Math.max(east, lon);
  }
  return south === Infinity ? null : { south, north, west, east };
}

function sizeOf({ south, north, west, east }: Extent): number {
  return Math.max(north - south, east - west);
}

function contains(outer: Extent, inner: Extent): boolean {
  return outer.south <= inner.south && outer.north >= inner.north && outer.west <= inner.west && outer.east >= inner.east;
}

function widen({ south, north, west, east }: Extent, by: number): Extent {
  return { south: south - by, north: north + by, west: west - by, east: east + by };
}

function sheet(width: number, height: number, spacing: number): Dot[] {
  const dots: Dot[] = [];
  for (let y = spacing / 2; y < height; y += spacing)
    for (let x = spacing / 2; x < width; x += spacing) dots.push({ x, y });
  return dots;
}
