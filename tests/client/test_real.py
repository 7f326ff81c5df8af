"""The client against real collectors and servers, over a real Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.serve.pipeline import Pipeline

from millstream.client import Change, Client, Gap, Message, Rejection, Sender, Snapshot
from millstream.client.backoff import Backoff
from millstream.collect.service import collecting
from millstream.collect.settings import CollectSettings
from millstream.errors import NotAllSent, QueryError, RequestRefused
from millstream.log.settings import LogSettings
from millstream.runtime.home import Home
from millstream.runtime.listen import bind
from millstream.settings import Settings

QUICK = Backoff(first=0.01, longest=0.1)


@pytest.fixture
def pipeline(log_settings: LogSettings, app_name: str) -> Pipeline:
    return Pipeline(app_name, log_settings)


@pytest.fixture
async def collector(pipeline: Pipeline, tmp_path: Path) -> AsyncIterator[str]:
    settings = Settings(log=pipeline.log, collect=CollectSettings(port=0))
    listener = bind("127.0.0.1", 0, tier="collect")
    async with collecting(pipeline.app, settings, Home(tmp_path), listener) as url:
        yield url


async def read_until(
    messages: AsyncIterator[Message], enough: Callable[[list[Message]], object]
) -> list[Message]:
    got: list[Message] = []
    async with asyncio.timeout(30):
        while not enough(got):
            got.append(await anext(messages))
    return got


async def test_sent_events_are_received_as_a_stream(pipeline: Pipeline, collector: str) -> None:
    async with (
        pipeline.server() as server,
        Client(server.url) as client,
        Sender(collector, batch=30) as sender,
        client.changes(stream="rsvps") as changes,
    ):
        assert isinstance(await anext(changes), Snapshot)
        events = [{"id": n, "city": "Köln"} for n in range(100)]
        sent = await sender.send("rsvps", [*events, {"id": "x"}, "{", ""], receipts=True)
        got = await read_until(aiter(changes), lambda got: len(got) == 100)
    assert sent.accepted == len(set(sent.receipts)) == 100
    assert [rejection.index for rejection in sent.rejected] == [100, 101]
    assert isinstance(sent.rejected[0], Rejection)
    assert sent.rejected[0].field == "id"
    assert sorted(m.row["id"] for m in got if isinstance(m, Change) and m.row) == list(range(100))


async def test_the_error_for_an_unknown_stream_has_the_collectors_words(collector: str) -> None:
    async with Sender(collector) as sender:
        with pytest.raises(NotAllSent, match="did you mean 'rsvps'"):
            await sender.send("rsvp", [{"id": 1}])


async def test_changes_continue_on_another_server_without_gap_or_repetition(
    pipeline: Pipeline,
) -> None:
    async with AsyncExitStack() as first, pipeline.server() as second:
        one = await first.enter_async_context(pipeline.server())
        client = Client(one.url, second.url, backoff=QUICK)
        async with client, client.changes("by_city") as changes:
            assert isinstance(await anext(changes), Snapshot)
            for n in range(1, 51):
                pipeline.count("Berlin", n)
            pipeline.flush()
            got = await read_until(aiter(changes), lambda got: len(got) == 50)
            await first.aclose()
            for n in range(51, 101):
                pipeline.count("Berlin", n)
            pipeline.flush()
            got += await read_until(aiter(changes), lambda got: len(got) == 50)
    assert [m.row["n"] for m in got if isinstance(m, Change) and m.row] == list(range(1, 101))


async def test_a_stored_position_continues_without_a_snapshot(pipeline: Pipeline) -> None:
    async with pipeline.server() as server, Client(server.url) as client:
        pipeline.count("Berlin", 1)
        pipeline.flush()
        async with client.changes("by_city") as changes:
            await read_until(
                aiter(changes), lambda _: changes.position and shows(changes.position, 1)
            )
            kept = changes.position
        pipeline.count("Berlin", 2)
        pipeline.flush()
        async with client.changes("by_city", after=kept) as changes:
            (message,) = await read_until(aiter(changes), lambda got: got)
    assert isinstance(message, Change)
    assert message.row == {"city": "Berlin", "n": 2}


async def test_a_position_of_an_older_generation_gives_a_gap_and_a_snapshot(
    pipeline: Pipeline,
) -> None:
    async with (
        pipeline.server() as server,
        Client(server.url) as client,
        client.changes("by_city", after="another-epoch:0=5") as changes,
    ):
        gap, snapshot = await read_until(aiter(changes), lambda got: len(got) == 2)
    assert isinstance(gap, Gap)
    assert gap.asked == "another-epoch:0=5"
    assert isinstance(snapshot, Snapshot)


async def test_rows_keys_filters_and_sql(pipeline: Pipeline) -> None:
    for city, n in (("Berlin", 3), ("Köln", 5), ('"a/b" [c]', 1)):
        pipeline.count(city, n)
    pipeline.flush()
    async with pipeline.server() as server, Client(server.url) as client:
        assert {view["name"] for view in await client.views()} == {
            "by_city",
            "per_minute",
            "newest",
        }
        rows = await client.snapshot("by_city", where="n > 1", select=["city"], order="n DESC")
        assert rows.rows == [{"city": "Köln"}, {"city": "Berlin"}]
        assert await client.get("by_city", "Köln") == {"city": "Köln", "n": 5}
        assert await client.get("by_city", '"a/b" [c]') == {"city": '"a/b" [c]', "n": 1}
        assert await client.get("by_city", "Paris") is None
        table = await client.query("SELECT sum(n) AS total FROM by_city")
        assert ([column.name for column in table.columns], table.rows) == (["total"], [[9]])
        assert (await client.system())["app"] == pipeline.app.name


async def test_errors_have_the_servers_words(pipeline: Pipeline) -> None:
    async with pipeline.server() as server, Client(server.url) as client:
        with pytest.raises(QueryError, match="nn"):
            await client.snapshot("by_city", where="nn > 1")
        with pytest.raises(RequestRefused, match="by_city"):
            await client.snapshot("by_citty")
        with pytest.raises(QueryError):
            await client.query("DROP TABLE by_city")
        async with client.changes("by_city", where="n >") as changes:
            with pytest.raises(QueryError):
                await anext(changes)


def shows(position: str, offset: int) -> bool:
    return int(position.rpartition("=")[2] or 0) >= offset
