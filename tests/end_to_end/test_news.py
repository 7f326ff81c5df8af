"""The news example, whole: every row and every alert is what its simulator knows to be true."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from examples.news.simulator import LINK_CHECKS, PAGE_VIEWS, SECTION_OF, broken_links, trending
from tests.end_to_end.true_rows import as_set, await_rows, last_watermark, rows_in_log
from tests.wait_until import until

from millstream.client import Change, Client, Snapshot
from millstream.simulation import EventSender, SentEvent, predict

if TYPE_CHECKING:
    from tests.end_to_end.conftest import StartSystem, System

ROOT = Path(__file__).parents[2]
PIPELINE = ROOT / "examples/news/pipeline.py"
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


@asynccontextmanager
async def desk(news: News, *flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A desk at work during the block, as a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.news.desk", "--url", news.system.serve_url, *flags),
        cwd=ROOT,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def handled(log: Path) -> list[Row]:
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


async def test_each_alert_is_handled_by_one_desk_even_if_another_dies(
    news: News, tmp_path: Path
) -> None:
    true, log = news.link_checks["alerts"], tmp_path / "handled"
    async with Client(news.system.serve_url, timeout=60) as client:

        async def in_flight() -> int | None:
            groups = {group["name"]: group for group in await client.groups()}
            return groups["desks"]["in_flight"] if "desks" in groups else None

        async def one_is_held() -> bool:
            return await in_flight() == 1

        async def all_are_handled() -> bool:
            return len(handled(log)) >= len(true) and await in_flight() == 0

        async with desk(news, "--name", "slow", "--seconds", "3600") as slow:
            await until(one_is_held)
            async with desk(news, "--name", "quick", "--log", str(log)):
                await until(lambda: handled(log))
                assert len(handled(log)) < len(true)  # the slow desk has one of them
                slow.kill()
                await until(all_are_handled, 120)
    rows = handled(log)
    assert Counter(row.pop("attempt") for row in rows) == {1: len(true) - 1, 2: 1}
    assert {row.pop("desk") for row in rows} == {"quick"}
    assert as_set(rows) == as_set(true)
    for url in {row["url"] for row in true}:
        assert [row for row in rows if row["url"] == url] == [
            row for row in true if row["url"] == url
        ]


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
