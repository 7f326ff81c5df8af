/** Elements are built here and filled by textContent: nothing in this program parses HTML. */

type Child = Node | string | null;

export function element<Name extends keyof HTMLElementTagNameMap>(
  name: Name,
  attributes: Readonly<Record<string, string>> = {},
  ...children: readonly Child[]
): HTMLElementTagNameMap[Name] {
  const made = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

export function drawn<Name extends keyof SVGElementTagNameMap>(
  name: Name,
  attributes: Readonly<Record<string, string | number>> = {},
  ...children: readonly SVGElement[]
): SVGElementTagNameMap[Name] {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, String(value));
  made.append(...children);
  return made;
}

/** Writes the text only if it differs: an equal write would still cost a layout. */
export function say(target: Element, text: string): boolean {
  if (target.textContent === text) return false;
  target.textContent = text;
  return true;
}

/** Makes the children anew only when what they say has changed. */
export function fill(target: HTMLElement, said: unknown, make: () => Node[]): void {
  const text = JSON.stringify(said);
  if (target.dataset.said === text) return;
  target.dataset.said = text;
  target.replaceChildren(...make());
}

const still = matchMedia("(prefers-reduced-motion: reduce)");

/** True for readers who asked their system for less movement. */
export function motionReduced(): boolean {
  return still.matches;
}
