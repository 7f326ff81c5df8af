import { isIdentifier, kindOf, ROW_STATE, type ViewDescription } from "@millstream/client";

/** How a view is drawn. The first of the measures is drawn first. */
export type ChartChoice =
  | { readonly kind: "map"; readonly lat: string; readonly lon: string; readonly label: readonly string[]; readonly measures: readonly string[] }
  | { readonly kind: "race"; readonly window: string; readonly label: readonly string[]; readonly measures: readonly string[] }
  | { readonly kind: "timeline"; readonly window: string | null; readonly measures: readonly string[] }
  | { readonly kind: "bars"; readonly label: readonly string[]; readonly measures: readonly string[] }
  | { readonly kind: "none" };

const LATITUDE = /^(lat|latitude)$|_(lat|latitude)$/i;
const LONGITUDE = /^(lon|lng|long|longitude)$|_(lon|lng|longitude)$/i;
const PLACE = /city|town|place|venue|station|site/i;

/** Chooses the chart from the view's columns and key alone. */
export function chooseChart(view: ViewDescription): ChartChoice {
  const kinds = new Map(view.columns.map((column) => [column.name, kindOf(column)]));
  const numbers = view.columns.map((c) => c.name).filter((name) => kinds.get(name) === "number");
  const lat = numbers.find((name) => LATITUDE.test(name));
  const lon = numbers.find((name) => LONGITUDE.test(name));
  const key = view.key ?? [];
  const measures = numbers.filter(
    (name) => !key.includes(name) && !isIdentifier(name) && name !== lat && name !== lon,
  );
  const texts = view.columns.map((c) => c.name).filter((name) => kinds.get(name) === "text" && name !== ROW_STATE);
  if (lat !== undefined && lon !== undefined) {
    const place = texts.find((name) => PLACE.test(name)) ?? texts[0];
    const label = place === undefined ? [] : [place];
    return { kind: "map", lat, lon, label, measures: view.key === null ? [] : measures };
  }
  if (measures.length === 0) return { kind: "none" };
  const window = windowColumn(view);
  const label = key.filter((name) => name !== window);
  if (window !== null && label.length === 0) return { kind: "timeline", window, measures };
  if (window !== null && view.key !== null) return { kind: "race", window, label, measures };
  if (view.key === null) return { kind: "timeline", window: null, measures };
  return { kind: "bars", label, measures };
}

/** The column that is a time window, as described or as its type shows. */
export function windowColumn(view: ViewDescription): string | null {
  if (view.window !== undefined && view.window !== null) return view.window;
  return view.columns.find((column) => kindOf(column) === "window")?.name ?? null;
}
