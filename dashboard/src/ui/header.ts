import type { ConnectionState, Lag, System } from "@millstream/client";
import { svgElement, element, setText } from "./dom";
import * as format from "./format";
import { theme, switchTheme, onTheme } from "./theme";

const LAG_SHOWN_MS = 4_000;

/** The top line: the app, the state of the connection, the lag and the latency from end to end. */
export class Header {
  readonly root: HTMLElement;
  private readonly app = element("h1", {}, "Millstream");
  private readonly pill = element("p", { class: "pill" });
  private readonly latency = element("dd", {}, "–");
  private readonly tail = element("dd", {}, "–");
  private readonly lag = element("dd", {}, "–");
  private connection: ConnectionState = { kind: "connecting" };
  private readonly behind = new Map<string, { lag: Lag; at: number }>();
  private readonly brand = element("span", { class: "brand" }, "Millstream");
  private readonly systemFigures = [
    figure("end to end", this.latency, "Median time from collect to serve over the last seconds"),
    figure("p99", this.tail, "99 of 100 results are faster than this"),
  ];

  /** `announce` speaks through screen readers, so it gets only rare changes. `onLogout` is null without a login. */
  constructor(
    private readonly announce: (text: string) => void,
    onLogout: (() => void) | null = null,
  ) {
    const lag = figure("lag", this.lag, "Changes that this page has still to receive");
    const figures = element("dl", { class: "figures" }, ...this.systemFigures, lag);
    const title = element("div", { class: "title" }, mark(), this.app, this.brand);
    this.root = element("header", {}, title, figures, this.pill, onLogout === null ? null : logoutButton(onLogout), themeButton());
    setInterval(() => {
      this.paintConnection();
      this.paintLag();
    }, 500);
  }

  paint(system: System | null): void {
    if (system === null) return;
    setText(this.app, system.app);
    document.title = `${system.app} · Millstream`;
    const total = system.end_to_end_ms ?? null;
    setText(this.latency, total === null ? "–" : format.duration(total.p50));
    setText(this.tail, total === null ? "–" : format.duration(total.p99));
  }

  /** Leaves out the figures and the name that only the system's description has. */
  showViewsOnly(): void {
    for (const each of [...this.systemFigures, this.brand]) each.hidden = true;
  }

  setConnection(connection: ConnectionState): void {
    const before = this.connection.kind;
    this.connection = connection;
    this.paintConnection();
    if (connection.kind === "live" && before !== "live") this.announce("Connected.");
    if (connection.kind === "waiting" && before === "live") this.announce("Connection lost, trying again.");
  }

  setLag(subscription: string, lag: Lag): void {
    this.behind.set(subscription, { lag, at: Date.now() });
  }

  private paintConnection(): void {
    this.pill.dataset.state = this.connection.kind;
    if (this.connection.kind === "live") setText(this.pill, "live");
    else if (this.connection.kind === "connecting") setText(this.pill, "connecting");
    else if (this.connection.kind === "refused") setText(this.pill, "disconnected");
    else {
      const seconds = Math.max(0, Math.ceil((this.connection.until - Date.now()) / 1_000));
      setText(this.pill, seconds === 0 ? "reconnecting" : `offline, again in ${seconds} s`);
    }
  }

  /** The server reports a lag only while there is one: without a recent report there is none. */
  private paintLag(): void {
    let most: Lag | null = null;
    for (const { lag, at } of this.behind.values()) {
      if (Date.now() - at < LAG_SHOWN_MS && lag.behind > (most?.behind ?? 0)) most = lag;
    }
    setText(this.lag, this.connection.kind === "live" ? format.number(most?.behind ?? 0) + (most?.growing === true ? " ▲" : "") : "–");
    this.lag.title = most?.seconds === undefined ? "" : `${format.duration(most.seconds * 1_000)}${most.growing === true ? ", growing" : ""}`;
    this.lag.classList.toggle("warm", most !== null);
  }
}

function figure(name: string, value: HTMLElement, title: string): HTMLElement {
  return element("div", { title }, element("dt", {}, name), value);
}

function logoutButton(onLogout: () => void): HTMLElement {
  const button = element("button", { type: "button", class: "secondary" }, "Log out");
  button.addEventListener("click", onLogout);
  return button;
}

export function mark(): Node {
  const wave = (y: number, opacity: number): SVGPathElement =>
    svgElement("path", { d: `M4 ${y}c4-3.6 8-3.6 12 0s8 3.6 12 0`, opacity });
  return svgElement("svg", { class: "mark", viewBox: "0 0 32 32", "aria-hidden": "true" }, wave(10, 1), wave(17, 0.65), wave(24, 0.35));
}

export function themeButton(): HTMLElement {
  const button = element("button", { type: "button", class: "theme" });
  const icon = svgElement("path");
  button.append(svgElement("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, icon));
  onTheme(() => {
    const dark = theme() === "dark";
    button.setAttribute("aria-label", dark ? "Use the light theme" : "Use the dark theme");
    button.title = button.getAttribute("aria-label") ?? "";
    icon.setAttribute(
      "d",
      dark
        ? "M12 4V2m0 20v-2M4 12H2m20 0h-2M6.3 6.3 4.9 4.9m14.2 14.2-1.4-1.4m0-11.4 1.4-1.4M4.9 19.1l1.4-1.4M16 12a4 4 0 1 1-8 0 4 4 0 0 1 8 0Z"
        : "M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5Z",
    );
  });
  button.addEventListener("click", switchTheme);
  return button;
}
