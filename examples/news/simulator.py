"""Sends page views and link checks of a newspaper's site, and knows what they make.

python simulator.py --seed 1 --events 3000 --rate 50 --truth truth.json
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from random import Random
from typing import Any

from millstream.simulation import (
    Predicted,
    Simulation,
    Tumbling,
    grouped,
    iso_time,
    late_records,
    main,
    state_of,
    window_json,
    with_outcome,
)

MINUTE = Tumbling(60_000)
LATENESS = 120_000
SECTIONS = {
    "world": ("the-strait-reopens", "a-treaty-on-rivers", "election-night-in-lima"),
    "business": ("copper-at-a-record", "the-four-day-week", "why-ferries-pay"),
    "science": ("a-comet-returns", "mapping-the-mesopelagic", "how-swifts-sleep"),
    "culture": ("the-last-projectionist", "a-mill-becomes-a-stage", "novels-by-weight"),
    "sport": ("rain-stops-play-again", "the-marathon-of-trail", "a-keeper-at-forty"),
}
SECTION_OF = {article: section for section, several in SECTIONS.items() for article in several}
ARTICLES = sorted(SECTION_OF)
LINKS = 3  # of each article
READERS = 500
TREND_MILLISECONDS = 300_000  # after so long, other articles trend
OUTAGE_MILLISECONDS = 240_000  # a link works, or is broken, at least so long
BROKEN_SHARE = 0.15
STATUSES = (404, 404, 410, 500, 503)
Row = dict[str, Any]


def page_view(n: int, at: int, rng: Random) -> Mapping[str, Any]:
    """The n-th page view; two articles at a time are read far more than the others."""
    hot = _trending(at // TREND_MILLISECONDS)
    (article,) = rng.choices(ARTICLES, [12 if each in hot else 1 for each in ARTICLES])
    return {
        "article": article,
        "section": SECTION_OF[article],
        "reader": f"reader {rng.randrange(READERS)}",
    }


@cache
def _trending(period: int) -> frozenset[str]:
    return frozenset(Random(f"trend:{period}").sample(ARTICLES, 2))


def link_check(n: int, at: int, rng: Random) -> Mapping[str, Any]:
    """The n-th check: of some link of some article."""
    article, number = rng.choice(ARTICLES), rng.randrange(1, LINKS + 1)
    url = f"https://source-{number}.example/{article}"
    return {"url": url, "article": article, "status": status_of(url, at)}


def status_of(url: str, at: int) -> int:
    """Depends on the link and the time alone: two checks at one moment find the same."""
    rng = Random(f"outage:{url}:{at // OUTAGE_MILLISECONDS}")
    return rng.choice(STATUSES) if rng.random() < BROKEN_SHARE else 200


def truth_of_page_views(predicted: Sequence[Predicted]) -> dict[str, Any]:
    """The rows of the view of page views and the late topic when all windows are closed."""
    rows = grouped(predicted, MINUTE, LATENESS, lambda event: str(event["article"]))
    minutes = [
        {
            "window": window_json(window),
            "article": article,
            "section": SECTION_OF[article],
            "views": len(events),
            "_state": state_of(window, events),
        }
        for (window, article), events in sorted(rows.items())
    ]
    late = late_records(predicted, {"article_minutes": MINUTE}, LATENESS)
    return {"views": {"article_minutes": minutes}, "late": late, **_counts(predicted)}


def truth_of_link_checks(predicted: Sequence[Predicted]) -> dict[str, Any]:
    """The rows of the views of link checks, and every alert: the alerts of a link are in order."""
    checks: dict[str, list[Mapping[str, Any]]] = {}
    for each in with_outcome(predicted, "logged"):
        checks.setdefault(each.sending.event["url"], []).append(each.sending.event)
    alerts = [alert for url in sorted(checks) for alert in _alerts(checks[url])]
    return {
        "views": {
            "links": [_link(checks[url]) for url in sorted(checks)],
            "alerts": list({alert["url"]: alert for alert in alerts}.values()),
        },
        "alerts": alerts,
        "late": late_records(predicted, {}, LATENESS),
        **_counts(predicted),
    }


def trending(minutes: Sequence[Row], n: int = 10, section: str | None = None) -> list[Row]:
    """The answer of the query of this name, if the view article_minutes has these rows."""
    now, before = (_views_by_article(minutes, *each) for each in ((0, 5), (5, 10)))
    rows: list[Row] = [
        {
            "article": article,
            "section": SECTION_OF[article],
            "views": now[article],
            "earlier": before[article],
        }
        for article in now.keys() | before.keys()
        if section in (None, SECTION_OF[article])
    ]
    return sorted(rows, key=lambda row: (-row["views"], row["article"]))[:n]


def broken_links(minutes: Sequence[Row], links: Sequence[Row]) -> list[Row]:
    """The answer of the query of this name, if the views have these rows."""
    views = _views_by_article(minutes, 0, 5)
    rows = [
        {
            **{name: link[name] for name in ("url", "status", "checked", "article")},
            "views": views[link["article"]],
        }
        for link in links
        if link["status"] >= 400
    ]
    return sorted(rows, key=lambda row: (-row["views"], row["url"]))


def _views_by_article(minutes: Sequence[Row], newest: int, oldest: int) -> Counter[str]:
    """Views in the minutes that began at least `newest` and less than `oldest` minutes ago."""
    starts = [datetime.fromisoformat(row["window"]["start"]) for row in minutes]
    latest = max(starts)
    views: Counter[str] = Counter()
    for start, row in zip(starts, minutes, strict=True):
        if newest <= (latest - start) / timedelta(minutes=1) < oldest:
            views[row["article"]] += row["views"]
    return views


def _link(checks: Sequence[Mapping[str, Any]]) -> Row:
    newest = _newest(checks)
    return {
        "url": newest["url"],
        "article": newest["article"],
        "status": newest["status"],
        "checked": iso_time(newest["at"]),
        "checks": len(checks),
        "failures": sum(each["status"] >= 400 for each in checks),
    }


def _alerts(checks: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The newest check each time that the link was not broken before, in the order of the log."""
    alerts: list[Row] = []
    was_broken = False
    for n in range(1, len(checks) + 1):
        newest = _newest(checks[:n])
        is_broken = newest["status"] >= 400
        if is_broken and not was_broken:
            alerts.append({**newest, "at": iso_time(newest["at"])})
        was_broken = is_broken
    return alerts


def _newest(checks: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """By the time of the check: one that arrives late does not replace a newer one."""
    return max(checks, key=lambda each: int(each["at"]))


def _counts(predicted: Sequence[Predicted]) -> dict[str, int]:
    duplicates = len(with_outcome(predicted, "duplicate"))
    return {"logged": len(predicted) - duplicates, "duplicates": duplicates}


PAGE_VIEWS = Simulation(
    stream="page_views",
    time="at",
    lateness=LATENESS,
    window=MINUTE.size,
    generate=page_view,
    truth=truth_of_page_views,
    share=0.8,
)
LINK_CHECKS = Simulation(
    stream="link_checks",
    time="at",
    lateness=LATENESS,
    window=MINUTE.size,
    generate=link_check,
    truth=truth_of_link_checks,
    share=0.2,
)

if __name__ == "__main__":
    main([PAGE_VIEWS, LINK_CHECKS], __doc__ or "")
