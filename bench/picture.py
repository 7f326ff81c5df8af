"""Draws the figures as SVG: lines from p50 to the maximum, on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from bench.figures import Figures
from bench.report import MODES, VIEWS

WIDTH, LEFT, RIGHT, ROW, TOP = 860, 290, 90, 26, 88
LOWEST, HIGHEST = 1.0, 10_000.0  # milliseconds
STYLE = """
text{font:13px system-ui,sans-serif;fill:#1f2933}.dim{fill:#6b7785}.grid{stroke:#d9dee4}
.real_time{stroke:#0b7a75;fill:#0b7a75}.micro_batch{stroke:#c2571a;fill:#c2571a}
.none{stroke:#6b7785;fill:#6b7785}.head{font-weight:600}text.real_time,text.micro_batch,text.none{stroke:none}
@media(prefers-color-scheme:dark){text{fill:#e4e9ee}.dim{fill:#95a1ae}.grid{stroke:#36414d}
.real_time{stroke:#3ec9c0;fill:#3ec9c0}.micro_batch{stroke:#f0924f;fill:#f0924f}}
"""


def draw(measured: Sequence[Figures]) -> str:
    """An SVG document."""
    shown = [f for f in measured if f.whole is not None]
    height = TOP + ROW * len(shown) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' aria-label="Latency from post to client">',
        f"<style>{STYLE.strip()}</style>",
        '<text x="12" y="22" class="head">POST to WebSocket, milliseconds</text>',
        '<text x="12" y="42" class="dim">dot: p50 · thick line: to p99 · thin line: slowest</text>',
        *_grid(height),
        *(part for at, figures in enumerate(shown) for part in _row(figures, TOP + at * ROW)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _grid(height: int) -> Iterator[str]:
    for power in range(int(math.log10(LOWEST)), int(math.log10(HIGHEST)) + 1):
        x = _x(10.0**power)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP - 8}" y2="{height - 12}"/>'
        yield f'<text class="dim" x="{x}" y="{TOP - 14}" text-anchor="middle">{10**power:,}</text>'


def _row(figures: Figures, top: int) -> Iterator[str]:
    whole = figures.whole
    assert whole is not None
    y, mode = top + ROW // 2, figures.mode
    name = f"{VIEWS[figures.view]}, {figures.rate:,}/s"
    yield f'<text x="12" y="{y + 4}">{escape(name)}</text>'
    yield f'<text x="{LEFT - 12}" y="{y + 4}" class="{mode}" text-anchor="end">{MODES[mode]}</text>'
    yield _line(mode, whole.p50, whole.max, y, 1)
    yield _line(mode, whole.p50, whole.p99, y, 5)
    yield f'<circle class="{mode}" cx="{_x(whole.p50)}" cy="{y}" r="5"/>'
    yield f'<text x="{WIDTH - 12}" y="{y + 4}" text-anchor="end">{whole.p50:,.1f}</text>'


def _line(mode: str, start: float, stop: float, y: int, width: int) -> str:
    return (
        f'<line class="{mode}" x1="{_x(start)}" x2="{_x(stop)}" y1="{y}" y2="{y}"'
        f' stroke-width="{width}"/>'
    )


def _x(milliseconds: float) -> float:
    within = min(max(milliseconds, LOWEST), HIGHEST)
    share = math.log(within / LOWEST) / math.log(HIGHEST / LOWEST)
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)
