import { geoEqualEarth, geoPath, type GeoProjection } from "d3-geo";
import { feature } from "topojson-client";
import type { GeometryCollection, Topology } from "topojson-specification";
import land from "world-atlas/land-110m.json";

/** Antarctica and the polar sea have no events: the map ends at these latitudes. */
const NORTH = 80;
const SOUTH = -57;
/** Cuts the open Pacific at both edges. */
const ZOOM = 1.05;

export interface Dot {
  readonly x: number;
  readonly y: number;
}

export interface World {
  readonly width: number;
  readonly height: number;
  readonly spacing: number;
  readonly dots: readonly Dot[];
  place(lat: number, lon: number): Dot | null;
}

function projectionFor(width: number): { projection: GeoProjection; height: number } {
  const projection = geoEqualEarth().rotate([-11, 0]).fitWidth(width, { type: "Sphere" });
  projection.scale(projection.scale() * ZOOM);
  const top = projection([11, NORTH])?.[1] ?? 0;
  const bottom = projection([11, SOUTH])?.[1] ?? width / 2;
  const [x, y] = projection.translate();
  projection.translate([x, y - top]);
  return { projection, height: bottom - top };
}

/** Natural Earth's land as a grid of dots, for a map of this width. */
export function world(width: number): World {
  const { projection, height } = projectionFor(width);
  const spacing = Math.max(4, width / 190);
  return {
    width,
    height,
    spacing,
    dots: dotsOf(projection, width, height, spacing),
    place(lat, lon) {
      if (Math.abs(lat) > 90 || Math.abs(lon) > 180) return null;
      const at = projection([lon, lat]);
      return at === null ? null : { x: at[0], y: at[1] };
    },
  };
}

/** Looks up land in the pixels of a painted map, which is far faster than a test against the polygons. */
function dotsOf(projection: GeoProjection, width: number, height: number, spacing: number): Dot[] {
  const canvas = document.createElement("canvas");
  canvas.width = Math.ceil(width);
  canvas.height = Math.ceil(height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  if (context === null) return [];
  const topology = land as unknown as Topology<{ land: GeometryCollection }>;
  context.beginPath();
  geoPath(projection, context)(feature(topology, topology.objects.land));
  context.fill();
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
  const dots: Dot[] = [];
  const rise = spacing * 0.866;
  for (let line = 0; line * rise < height; line++) {
    const y = line * rise + rise / 2;
    for (let x = line % 2 === 0 ? spacing / 2 : spacing; x < width; x += spacing) {
      const alpha = pixels[(Math.floor(y) * canvas.width + Math.floor(x)) * 4 + 3] ?? 0;
      if (alpha > 110) dots.push({ x, y });
    }
  }
  return dots;
}
