"""The news example, whole: every row and every alert is what its simulator knows to be true."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from examples.news.simulator import LINK_CHECKS, PAGE_VIEWS, SECTION_OF, broken_links, trending
from tests.end_to_end.true_rows import as_set, await_rows, last_watermark, rows_in_log

from millstream.client import Change, Client, Snapshot
from millstream.simulation import EventSender, SentEvent, predict

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


@pytest.mark.timeout(600)
def test_the_views_of_each_article_are_true_in_every_minute(news: News) -> None:
    true = news.page_views["views"]["article_minutes"]
    await_rows(news.system, "article_minutes", true, ("window", "article"), news.watermark)


def test_each_link_has_its_newest_status(news: News) -> None:
    await_rows(news.system, "links", news.link_checks["views"]["links"], ("url",))


def test_there_is_one_alert_each_time_that_a_link_breaks(news: News) -> None:
    await_rows(news.system, "alerts", news.link_checks["views"]["alerts"], ("url",))
    assert as_set(rows_in_log(news.system, "news.view.alerts")) == as_set(
        news.link_checks["alerts"]
    )


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


async def test_an_article_that_everybody_reads_rises_in_the_live_query(news: News) -> None:
    """Last: it sends more."""
    minutes = list(news.page_views["views"]["article_minutes"])
    newest = max(minutes, key=lambda row: str(row["window"]["start"]))["window"]
    article, section = "novels-by-weight", SECTION_OF["novels-by-weight"]
    minutes.append({"window": newest, "article": article, "views": 200})
    rows: dict[str, Row] = {}

    async with (
        Client(news.system.serve_url, timeout=60) as client,
        client.changes(query="trending", params={"n": 3}) as changes,
    ):
        async for message in changes:
            match message:
                case Snapshot(rows=several):
                    rows = {str(one.row["article"]): one.row for one in several}
                    assert as_set(list(rows.values())) == as_set(trending(minutes[:-1], 3))
                    view = {"article": article, "section": section, "at": newest["start"]}
                    news.system.post("page_views", [view] * 200)
                case Change(op="upsert", row=dict(row)):
                    rows[str(row["article"])] = row
                case Change(op="delete", key=[gone]):
                    rows.pop(gone, None)
            if as_set(list(rows.values())) == as_set(trending(minutes, 3)):
                return
