"""Sends clicks to a collector, some of them late, twice or out of order, and knows what they make.

python simulator.py --seed 1 --events 3000 --rate 50 --truth truth.json
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from millstream.simulation import (
    Predicted,
    Simulation,
    Tumbling,
    grouped,
    late_records,
    main,
    state_of,
    window_json,
    with_outcome,
)

MINUTE = Tumbling(60_000)
LATENESS = 600_000
PAGES = ("/", "/news", "/prices", "/docs", "/about", "/jobs", "/blog/rivers", "/blog/mills")
VISITORS = 200


def click(n: int, at: int, rng: Random) -> Mapping[str, Any]:
    """The n-th click; the first pages are the most popular."""
    (page,) = rng.choices(PAGES, [1 / rank for rank in range(1, len(PAGES) + 1)])
    return {"page": page, "visitor": f"visitor {rng.randrange(VISITORS)}"}


def truth(predicted: Sequence[Predicted]) -> dict[str, Any]:
    """The rows of the views, the ledger and the late topic when all windows are closed."""
    by_page = grouped(predicted, MINUTE, LATENESS, lambda event: str(event["page"]))
    by_minute = grouped(predicted, MINUTE, LATENESS, lambda event: None)
    owed: Counter[str] = Counter()
    for (_, page), events in by_page.items():
        owed[page] += len(events)
    return {
        "views": {
            "clicks_per_minute": [
                {
                    "window": window_json(window),
                    "page": page,
                    "clicks": len(events),
                    "_state": state_of(window, events),
                }
                for (window, page), events in sorted(by_page.items())
            ],
            "site_per_minute": [
                {
                    "window": window_json(window),
                    "clicks": len(events),
                    "_state": state_of(window, events),
                }
                for (window, _), events in sorted(by_minute.items(), key=lambda each: each[0][0])
            ],
        },
        "ledger": {"clicks_per_minute": dict(sorted(owed.items()))},
        "corrected_by": _corrections(by_page),
        "late": late_records(
            predicted, {"clicks_per_minute": MINUTE, "site_per_minute": MINUTE}, LATENESS
        ),
        "logged": len(predicted) - len(with_outcome(predicted, "duplicate")),
        "duplicates": len(with_outcome(predicted, "duplicate")),
    }


def _corrections(rows: Mapping[tuple[Any, str], Sequence[Predicted]]) -> list[dict[str, Any]]:
    """Which stragglers correct which final row: the reasons that the ledger gives."""
    return [
        {"window": window_json(window), "page": page, "ids": ids}
        for (window, page), events in sorted(rows.items())
        if state_of(window, events) == "corrected"
        and (ids := sorted(each.sending.id for each in events if each.sending.straggler))
    ]


SIMULATION = Simulation(
    stream="clicks",
    time="at",
    lateness=LATENESS,
    window=MINUTE.size,
    generate=click,
    truth=truth,
)

if __name__ == "__main__":
    main(SIMULATION, __doc__ or "")
