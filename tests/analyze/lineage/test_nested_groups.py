"""Groups of groups and joins of groups give their rows once, when they are final."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

MINUTE = 60_000
START = time.time_ns() // 1_000_000 // MINUTE * MINUTE - 60 * MINUTE
STREAM = """
app.stream("bids", schema="auction STRING, at TIMESTAMP", event_time="at", lateness="1 minute")
"""
# Nexmark's query 5: in each window the auctions with the most bids.
HOTTEST = """
WITH counted AS (
    SELECT window(at, '2 minutes', '1 minute') AS window, auction, count(*) AS bids
    FROM bids GROUP BY 1, 2)
SELECT counted.window, auction, bids
FROM counted JOIN (SELECT window, max(bids) AS most FROM counted GROUP BY window) most
ON counted.window = most.window AND bids = most.most
"""


def bids(minute: int, **auctions: int) -> list[dict[str, Any]]:
    at = START + minute * MINUTE
    return [{"auction": name, "at": at} for name, count in auctions.items() for _ in range(count)]


def at(minute: int) -> str:
    moment = datetime.fromtimestamp((START + minute * MINUTE) / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M")


@pytest.mark.timeout(400)
def test_a_count_joined_with_its_own_maximum_gives_its_rows(live: Any, pipeline: Any) -> None:
    live.start(
        pipeline(f"""{STREAM}
app.view("hottest", key=["window", "auction"], sql='''{HOTTEST}''')
app.view("most", key=["window"], sql='''SELECT window, max(bids) AS bids, max_by(auction, bids) AS
    auction FROM (SELECT window(at, '1 minute') AS window, auction, count(*) AS bids FROM bids
    GROUP BY 1, 2) GROUP BY window''')
""")
    )
    plans = [query.plan for query in live.planned]
    assert {plan.output_mode for plan in plans} == {"append"}
    live.send("bids", *bids(0, a=3, b=1), *bids(1, a=1, b=2, c=3), *bids(2, c=1, b=1))
    live.send("bids", *bids(30, a=1))
    live.until(lambda: live.queries.settled)

    def hottest() -> list[tuple[str, str, int]]:
        rows = live.table("hottest").values()
        return sorted((row["window"]["start"][:16], row["auction"], row["bids"]) for row in rows)

    def most() -> list[tuple[str, str, int]]:
        rows = live.table("most").values()
        return sorted((row["window"]["start"][:16], row["auction"], row["bids"]) for row in rows)

    live.gives(
        hottest, [(at(-1), "a", 3), (at(0), "a", 4), (at(1), "c", 4), *ties(2, "b", "c")], 200
    )
    live.gives(lambda: most()[:2], [(at(0), "a", 3), (at(1), "c", 3)], 60)


def ties(minute: int, *auctions: str) -> list[tuple[str, str, int]]:
    return [(at(minute), auction, 1) for auction in auctions]
