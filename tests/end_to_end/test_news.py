"""The news example, whole: every row and every alert is what its simulator knows to be true."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from examples.news.simulator import LINK_CHECKS, PAGE_VIEWS, broken_links, trending
from tests.end_to_end.true_rows import as_set, await_rows, last_watermark

from millstream.client import Client
from millstream.log.consumer import bounds, read_range
from millstream.log.settings import LogSettings
from millstream.simulation import EventSender, SentEvent, predict
from millstream.values.hidden_columns import RESERVED

if TYPE_CHECKING:
    from tests.end_to_end.conftest import StartSystem, System

PIPELINE = Path(__file__).parents[2] / "examples/news/pipeline.py"
MINUTE = 60_000
# So long that no pause of a test passes for one of the stream's: what is open stays open.
PATIENT = ("--set", "analyze.idle=10 minutes")
Row = dict[str, Any]


@dataclass
class News:
    """The running example, all of whose events were sent, and the truth about each stream."""

    system: System
    page_views: Row
    link_checks: Row
    watermark: str


@pytest.fixture(scope="module")
def news(start_system: StartSystem) -> Iterator[News]:
    start = int(time.time() * 1000) // MINUTE * MINUTE - 40 * MINUTE
    views, checks = (
        each.sendings(seed=3, count=count, start=start, span=30 * MINUTE)
        for each, count in ((PAGE_VIEWS, 1_200), (LINK_CHECKS, 600))
    )
    flowing = [each for each in views if not each.straggler]
    with start_system(PIPELINE.read_text(), *PATIENT) as system:
        post(system, "link_checks", checks)
        post(system, "page_views", flowing)
        so_far = PAGE_VIEWS.truth(list(predict(flowing)))["views"]["article_minutes"]
        watermark = last_watermark(flowing)
        await_rows(system, "article_minutes", so_far, ("window", "article"), watermark)
        post(system, "page_views", views[len(flowing) :])
        yield News(
            system,
            PAGE_VIEWS.truth(list(predict(views))),
            LINK_CHECKS.truth(list(predict(checks))),
            watermark,
        )


def post(system: System, stream: str, sendings: list[SentEvent]) -> None:
    with EventSender(system.collect_url, stream) as sender:
        sender.send(sendings)


def alerts(system: System) -> list[Row]:
    """Every alert in the log, without hidden columns."""
    log, topic = LogSettings(bootstrap=system.bootstrap), "news.view.alerts"
    records = [
        record
        for partition, (first, end) in bounds(log, topic).items()
        for record in read_range(log, topic, partition, first, end)
    ]
    rows = [json.loads(record.value or b"") for record in records]
    return [{name: row[name] for name in row if name not in RESERVED} for row in rows]


@pytest.mark.timeout(600)
def test_the_views_of_each_article_are_true_in_every_minute(news: News) -> None:
    true = news.page_views["views"]["article_minutes"]
    await_rows(news.system, "article_minutes", true, ("window", "article"), news.watermark)


def test_each_link_has_its_newest_status(news: News) -> None:
    await_rows(news.system, "links", news.link_checks["views"]["links"], ("url",))


def test_there_is_one_alert_each_time_that_a_link_breaks(news: News) -> None:
    await_rows(news.system, "alerts", news.link_checks["views"]["alerts"], ("url",))
    assert as_set(alerts(news.system)) == as_set(news.link_checks["alerts"])


async def answer(news: News, query: str, **parameters: str | int) -> list[Row]:
    async with Client(news.system.serve_url, timeout=60) as client:
        table = await client.run(query, **parameters)
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


async def test_trending_articles_are_the_most_read_ones_of_the_last_minutes(news: News) -> None:
    true = news.page_views["views"]["article_minutes"]
    await_rows(news.system, "article_minutes", true, ("window", "article"), news.watermark)
    assert await answer(news, "trending", n=5) == trending(true, 5)
    assert await answer(news, "trending", section="culture") == trending(true, section="culture")


async def test_broken_links_come_with_the_views_of_their_articles(news: News) -> None:
    minutes = news.page_views["views"]["article_minutes"]
    links = news.link_checks["views"]["links"]
    await_rows(news.system, "links", links, ("url",))
    assert await answer(news, "broken_links") == broken_links(minutes, links) != []
