"""The bill of the clicks example has every ledger entry once, after any crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from confluent_kafka import Producer
from examples.clicks.billing import VIEW, Bill, add_up, follow
from tests.serve.pipeline import SECONDS
from tests.wait_until import until

from millstream import App
from millstream.client import Client, Entry
from millstream.client.backoff import Backoff
from millstream.log.connection import client_config
from millstream.log.settings import LogSettings
from millstream.log.topic_names import ledger_topic
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.serve.service import Server
from millstream.serve.settings import ServeSettings
from millstream.settings import Settings
from millstream.values.ledger_entry import EntryKind, encode

WINDOW = {"start": "2026-11-16T12:00:00Z", "end": "2026-11-16T12:01:00Z"}


def entry(name: str, kind: EntryKind, clicks: int, page: str = "/") -> Entry:
    return Entry(name, [WINDOW, page], kind, {"clicks": clicks}, [], WINDOW["end"])


class Site:
    """The ledger of the example, and servers for it."""

    def __init__(self, name: str, log: LogSettings) -> None:
        self._log = log
        self._app = App(name)
        self._app.stream("clicks", schema="page STRING, at TIMESTAMP", event_time="at")
        self._app.view(
            VIEW,
            key=["window", "page"],
            ledger=["clicks"],
            sql="SELECT window(at, '1 minute') AS window, page, count(*) AS clicks "
            "FROM clicks GROUP BY 1, 2",
        )
        ensure_topics(self._app, log)
        self._writer = Producer(client_config(log, transactional_id=name))
        self._writer.init_transactions(SECONDS)

    def enter(self, *entries: Entry) -> None:
        self._writer.begin_transaction()
        for each in entries:
            self._writer.produce(ledger_topic(self._app.name, VIEW), encode(each))
        self._writer.commit_transaction(SECONDS)

    @asynccontextmanager
    async def server(self) -> AsyncIterator[Server]:
        settings = Settings(log=self._log, serve=ServeSettings(port=0))
        async with Server(self._app, settings) as server:
            await asyncio.wait_for(server.wait_ready(), SECONDS)
            yield server


@asynccontextmanager
async def billing(url: str, bill: Bill) -> AsyncIterator[None]:
    """Run the example during the block, and then cancel it."""
    async with Client(url, backoff=Backoff(first=0.01, longest=0.1)) as client:
        work = asyncio.create_task(follow(client, bill))
        yield
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work


async def test_a_bill_resumes_from_its_file_on_another_server_and_counts_nothing_twice(
    log_settings: LogSettings, app_name: str, tmp_path: Path
) -> None:
    site, state = Site(app_name, log_settings), tmp_path / "bill.json"
    site.enter(entry("a", "assertion", 8), entry("b", "assertion", 2, "/news"))
    async with site.server() as one:
        bill = Bill(state)
        async with billing(one.url, bill):
            await until(lambda: bill.clicks == {"/": 8, "/news": 2})
            site.enter(entry("c", "retraction", 8), entry("d", "assertion", 9))
            await until(lambda: bill.clicks == {"/": 9, "/news": 2})
        bill.add(entry("e", "assertion", 100))  # it dies before this is on disk
    site.enter(entry("e", "assertion", 100))
    async with site.server() as other:
        bill = Bill(state)
        assert bill.clicks == {"/": 9, "/news": 2}
        async with billing(other.url, bill):
            await until(lambda: bill.clicks == {"/": 109, "/news": 2})
        whole = Bill()
        async with Client(other.url) as client:
            await add_up(client, whole)
            await add_up(client, bill)
        assert whole.clicks == bill.clicks == Bill(state).clicks
        assert whole.position == bill.position
