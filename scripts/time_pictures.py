"""Draws the pictures of docs/explanation/time.md: `python scripts/time_pictures.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs/images"
STYLE = """
text{font:13px system-ui,sans-serif;fill:#1f2933}.dim{fill:#5f6b78}.head{font-weight:600}
.axis{stroke:#5f6b78;fill:none}.grid{stroke:#d9dee4}.span{fill:#0b7a75;fill-opacity:.16;stroke:#0b7a75}
.more{fill:#c2571a;fill-opacity:.16;stroke:#c2571a}.event{fill:#0b7a75}.late{fill:#c2571a}
.lost{fill:none;stroke:#b3261e;stroke-width:2}.mark{stroke:#7048b6;stroke-width:2;fill:none}
text.mark{stroke:none;fill:#7048b6}text.late{fill:#c2571a}text.lost{stroke:none;fill:#b3261e}
@media(prefers-color-scheme:dark){text{fill:#e4e9ee}.dim{fill:#9aa6b2}.axis{stroke:#9aa6b2}
.grid{stroke:#36414d}.span{fill:#3ec9c0;stroke:#3ec9c0}.more{fill:#f0924f;stroke:#f0924f}
.event{fill:#3ec9c0}.late{fill:#f0924f}.lost{stroke:#ff8a80}.mark{stroke:#b69df0}
text.mark{fill:#b69df0}text.late{fill:#f0924f}text.lost{fill:#ff8a80}}
"""


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return (
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"/>'
    )


def dot(x: float, y: float, kind: str = "event") -> str:
    return f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="5"/>'


def arrow(x1: float, y: float, x2: float, kind: str = "axis") -> Iterator[str]:
    yield line(x1, y, x2, y, kind)
    yield f'<path class="{kind}" d="M{x2 - 7:g},{y - 4:g} L{x2:g},{y:g} L{x2 - 7:g},{y + 4:g}"/>'


def picture(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="{escape(title)}">'
    )
    return "\n".join([head, f"<style>{STYLE.strip()}</style>", *parts, "</svg>"]) + "\n"


def windows() -> str:
    """The same ten events in windows of each kind."""
    moments = [0.3, 0.7, 1.4, 1.6, 1.9, 3.2, 3.5, 4.6, 4.8, 5.5]
    left, minute = 150, 110

    def x(at: float) -> float:
        return left + at * minute

    def parts() -> Iterator[str]:
        for number in range(7):
            yield line(x(number), 34, x(number), 356, "grid")
            yield text(x(number), 26, f"12:0{number}", "dim", "middle")
        yield text(12, 56, "events", "head")
        yield from (dot(x(at), 52) for at in moments)
        yield text(12, 104, "tumbling", "head")
        yield text(12, 120, "1 minute", "dim")
        for start in range(6):
            inside = sum(start <= at < start + 1 for at in moments)
            yield box(x(start) + 2, 90, minute - 4, 36, "span")
            yield text(x(start + 0.5), 113, str(inside or "no row"), "", "middle")
        yield text(12, 170, "sliding", "head")
        yield text(12, 186, "2 minutes", "dim")
        yield text(12, 202, "each minute", "dim")
        for start in range(5):
            inside = sum(start <= at < start + 2 for at in moments)
            yield box(x(start) + 2, 148 + start % 2 * 34, 2 * minute - 4, 28, "span")
            yield text(x(start + 1), 167 + start % 2 * 34, str(inside), "", "middle")
        yield text(12, 250, "session", "head")
        yield text(12, 266, "gap 1 minute", "dim")
        for first, last, inside in ((0.3, 1.9, 5), (3.2, 3.5, 2), (4.6, 5.5, 3)):
            yield box(x(first), 236, (last - first + 1) * minute, 36, "span")
            yield text(x((first + last + 1) / 2), 259, str(inside), "", "middle")
        yield text(12, 316, "count", "head")
        yield text(12, 332, "each 4 events", "dim")
        for first, last, words in ((0.3, 1.6, "4"), (1.9, 4.6, "4"), (4.8, 5.5, "2 so far")):
            yield box(x(first) - 8, 302, (last - first) * minute + 16, 36, "more")
            yield text(x((first + last) / 2), 325, words, "", "middle")

    return picture(900, 368, "Ten events in tumbling, sliding, session and count windows", parts())


def watermark() -> str:
    """Events by when they came and when they happened, and the watermark that they push."""
    left, top, scale, bottom = 120, 40, 62, 350
    # Received, happened (minutes), kind.
    events = [
        *[(0.5, 0.4, "event"), (1.0, 0.9, "event"), (1.6, 1.3, "event"), (2.0, 1.9, "event")],
        *[(2.6, 1.5, "event"), (3.2, 3.1, "event"), (3.8, 1.8, "late"), (4.6, 4.5, "event")],
        *[(5.2, 1.2, "lost"), (6.0, 5.9, "event"), (6.6, 5.2, "event"), (7.2, 7.1, "event")],
    ]

    def x(at: float) -> float:
        return left + at * scale * 1.25

    def y(at: float) -> float:
        return bottom - at * scale * 0.62

    def parts() -> Iterator[str]:
        yield box(x(0), y(2), x(7.8) - x(0), y(1) - y(2), "span")
        yield text(x(7.8) - 8, y(1.5) + 4, "window 12:01 to 12:02", "", "end")
        for number in range(8):
            yield line(left - 5, y(number), left, y(number), "axis")
            yield text(left - 10, y(number) + 4, f"12:0{number}", "dim", "end")
            yield text(x(number), bottom + 20, f"12:0{number}", "dim", "middle")
        yield line(left, bottom, left, top - 12, "axis")
        yield from arrow(left, bottom, x(7.9))
        yield text(12, top - 20, "event time: when it happened", "head")
        yield text(x(7.9), bottom + 40, "stream time: when it came", "head", "end")
        newest, path = 0.0, f"M{x(0):g},{y(0):g}"
        for came, happened, _ in events:
            path += f" H{x(came):g}"
            if happened > newest:
                newest = happened
                path += f" V{y(newest):g}"
        yield f'<path class="mark" d="{path} H{x(7.8):g}"/>'
        yield text(x(6.3), y(6.2), "watermark", "mark", "end")
        yield from (dot(x(came), y(happened), kind) for came, happened, kind in events)
        yield text(x(2.6) + 9, y(1.5) + 15, "out of order, in time")
        yield text(x(3.8) + 9, y(1.8) - 9, "late: corrects its window", "late")
        yield text(x(5.2) + 9, y(1.2) + 20, "too late: into the late topic", "lost")
        yield line(x(3.2), y(2), x(3.2), y(4.3), "grid")
        yield text(x(3.2) - 6, y(4.4), "its row is final", "dim", "end")
        yield line(x(4.6), y(2), x(4.6), y(5.6), "grid")
        yield text(x(4.6) - 6, y(5.7), "and the lateness of 2 minutes is over", "dim", "end")

    return picture(840, 400, "How the watermark rises with events, and which are late", parts())


def row_life() -> str:
    """One row from its first event to its end."""
    places = (130, 300, 470, 640)
    names = ("provisional", "final", "corrected", "gone")
    causes = ("events come", "watermark ≥ end", "a late event", "keep is over")

    def parts() -> Iterator[str]:
        yield from arrow(100, 40, 780)
        yield text(12, 44, "time", "dim")
        for at, name, cause in zip(places, names, causes, strict=True):
            yield text(at + 60, 30, cause, "dim", "middle")
            yield line(at, 34, at, 46, "axis")
            if name != "gone":
                kind = "more" if name == "corrected" else "span"
                yield box(at, 62, 160, 34, kind)
                yield text(at + 80, 84, name, "head", "middle")
            else:
                yield text(at + 60, 84, name, "dim", "middle")
        yield text(12, 84, "state", "head")
        yield text(12, 136, "row", "head")
        rows = ("clicks 1, 2, … 8", "clicks 8", "clicks 9", "")
        for at, row in zip(places, rows, strict=True):
            yield text(at + 80, 136, row, "", "middle")
        yield text(12, 176, "clients see", "head")
        changes = ("upsert each time", "upsert", "upsert", "delete")
        for at, change in zip(places, changes, strict=True):
            yield text(at + (60 if at == places[-1] else 80), 176, change, "", "middle")
        yield text(12, 216, "ledger", "head")
        yield text(places[0] + 80, 216, "nothing", "dim", "middle")
        yield text(places[1] + 80, 216, "assertion 8", "", "middle")
        yield text(places[2] + 80, 216, "retraction 8", "late", "middle")
        yield text(places[2] + 80, 234, "assertion 9", "", "middle")
        yield text(places[3] + 60, 216, "nothing", "dim", "middle")
        yield text(12, 268, "sum", "head")
        for at, amount in zip(places, ("0", "8", "8 − 8 + 9 = 9", "9"), strict=True):
            yield text(at + (60 if at == places[-1] else 80), 268, amount, "", "middle")

    return picture(800, 284, "The life of one row, and what clients and the ledger see", parts())


PICTURES: dict[str, Callable[[], str]] = {
    "time-windows.svg": windows,
    "time-watermark.svg": watermark,
    "time-row.svg": row_life,
}


def main() -> None:
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
