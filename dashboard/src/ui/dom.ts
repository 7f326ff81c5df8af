/** Builds elements. Text is set by textContent: nothing in the dashboard parses HTML. */

type Child = Node | string | null;

export function element<Name extends keyof HTMLElementTagNameMap>(
  name: Name,
  attributes: Readonly<Record<string, string>> = {},
  ...children: readonly Child[]
): HTMLElementTagNameMap[Name] {
  const created = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) created.setAttribute(attribute, value);
  created.append(...children.filter((child) => child !== null));
  return created;
}

export function svgElement<Name extends keyof SVGElementTagNameMap>(
  name: Name,
  attributes: Readonly<Record<string, string | number>> = {},
  ...children: readonly SVGElement[]
): SVGElementTagNameMap[Name] {
  const created = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) created.setAttribute(attribute, String(value));
  created.append(...children);
  return created;
}

/** Sets the text if it differs, because an equal write would still cost a layout. True if it differed. */
export function setText(target: Element, text: string): boolean {
  if (target.textContent === text) return false;
  target.textContent = text;
  return true;
}

/** Replaces the children if `content` differs from the last call. */
export function setChildren(target: HTMLElement, content: unknown, make: () => Node[]): void {
  const text = JSON.stringify(content);
  if (target.dataset.content === text) return;
  target.dataset.content = text;
  target.replaceChildren(...make());
}

const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

/** True if the reader's system asks for less motion. */
export function motionReduced(): boolean {
  return reducedMotion.matches;
}
