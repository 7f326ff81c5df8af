export type Theme = "light" | "dark";

const SLOT = "millstream.theme";
const preference = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();

function chosen(): Theme | null {
  const stored = localStorage.getItem(SLOT);
  return stored === "light" || stored === "dark" ? stored : null;
}

export function theme(): Theme {
  return chosen() ?? (preference.matches ? "dark" : "light");
}

export function applyTheme(): void {
  document.documentElement.dataset.theme = theme();
  for (const listener of listeners) listener();
}

/** Switches to the other theme. The page follows the system's theme again once the two agree. */
export function switchTheme(): void {
  const other: Theme = theme() === "dark" ? "light" : "dark";
  if ((other === "dark") === preference.matches) localStorage.removeItem(SLOT);
  else localStorage.setItem(SLOT, other);
  applyTheme();
}

/** Calls back now and at each change of colours: a canvas must be drawn again, unlike CSS. */
export function onTheme(listener: () => void): void {
  listeners.add(listener);
  listener();
}

preference.addEventListener("change", applyTheme);

/** A colour of the palette in style/palette.css, as text for a canvas. */
export function color(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
