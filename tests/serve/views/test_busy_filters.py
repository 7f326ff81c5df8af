"""An expensive filter delays only its own client."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from tests.serve.pipeline import SECONDS, Pipeline, socket, websocket_of
from tests.wait_until import until

from millstream.serve.service import Server
from millstream.serve.settings import ServeSettings
from millstream.serve.subscriptions.subscription import Subscription
from millstream.serve.views.served_view import ServedView

WHERE = " OR ".join(["city LIKE '%a_a_c%'", "city LIKE '%b_b_c%'", "city LIKE '%a__a_c%'"])
ROWS = 150


@contextlib.asynccontextmanager
async def never_stalled(seconds: float) -> AsyncIterator[None]:
    """The server runs in this event loop: others get their turn within `seconds`."""
    longest, ended = 0.0, asyncio.Event()

    async def tick() -> None:
        nonlocal longest
        while not ended.is_set():
            began = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - began)

    ticking = asyncio.create_task(tick())
    yield
    ended.set()
    await ticking
    assert longest < seconds


@pytest.fixture
async def filled(pipeline: Pipeline, server: Server) -> None:
    for number in range(ROWS):
        name = f"{number}" + "ab" * 20_000
        pipeline.put("by_city", [number], {"city": name, "n": number}, 1)
        if number % 100 == 0:
            pipeline.flush()
    pipeline.flush()
    await until(lambda: len(server.context.views["by_city"].table) == ROWS)


@pytest.mark.usefixtures("filled")
async def test_an_expensive_filter_over_many_rows_delays_no_other_client(
    server: Server, http: httpx.AsyncClient
) -> None:
    async with never_stalled(2.0):
        answer = await http.get("/v1/views/by_city", params={"where": WHERE})
        assert answer.status_code in (200, 400)
        if answer.status_code == 200:
            assert answer.json()["rows"] == []
        ordered = await http.get("/v1/views/by_city", params={"order": "lower(city)", "limit": 1})
        assert len(ordered.json()["rows"]) == 1


@pytest.mark.usefixtures("filled")
async def test_an_expensive_filter_over_many_changes_delays_no_other_client(
    server: Server, pipeline: Pipeline
) -> None:
    served = server.context.views["by_city"]
    async with socket(server) as client:
        async with never_stalled(2.0):
            await client.send(
                type="subscribe", id="a", view="by_city", after=f"{served.epoch}:0=0", where=WHERE
            )
            pipeline.put("by_city", ["last"], {"city": "abac", "n": 1}, 1)
            pipeline.put("by_city", ["last"], {"city": "xaba_c", "n": 1}, 2)
            message = await client.next()
            while message["type"] == "lag":
                message = await client.next()
        assert (message["type"], message["key"]) == ("change", ["last"])


async def test_a_filter_that_takes_too_long_is_an_error_everywhere(pipeline: Pipeline) -> None:
    async with pipeline.server(query_seconds=0.000001) as server:
        for number in range(100):
            pipeline.count(f"{number}", 1)
        await until(lambda: len(server.context.views["by_city"].table) == 100)
        async with httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http:
            for path in ("", "/changes"):
                answer = await http.get(f"/v1/views/by_city{path}", params={"where": "n > 0"})
                assert answer.status_code == 400, path
                assert "took longer than" in answer.json()["detail"]
        async with socket(server) as client:
            answer_ = await client.subscribe(view="by_city", where="n > 0")
            assert (answer_["type"], answer_["id"]) == ("error", "a")
            assert "took longer than" in answer_["detail"]
            pipeline.count("1", 2)
            await until(lambda: server.context.views["by_city"].table.rows['["1"]']["n"] == 2)
            await client.send(type="ping")
            assert await client.next() == {"type": "pong"}


@pytest.mark.usefixtures("filled")
async def test_a_connection_holds_one_large_snapshot_at_a_time(server: Server) -> None:
    async with socket(server, max_queue=1) as client:
        for number in range(20):
            where = f"n >= {-number}"
            await client.send(type="subscribe", id=str(number), view="by_city", where=where)
        got: set[str] = set()
        while len(got) < 20:
            message = await client.next()
            assert (message["type"], message["total"]) == ("snapshot", ROWS)
            if message["last"]:
                got.add(message["id"])
            held = [
                each.has_pending
                for each in websocket_of(server).sources.values()
                if isinstance(each, Subscription)
            ]
            assert held.count(True) <= 1


async def test_the_first_rows_of_very_many_delay_no_other_client() -> None:
    dice = random.Random(1)
    row: dict[str, object] = {"n": 1}
    served = ServedView("v", "view", "t", ServeSettings(), key=("k",))
    served.table.rows = {f'["{dice.randrange(10**12)}"]': row for _ in range(1_000_000)}
    choose = served.prepare_rows(served.encoding(None, None, False), limit=10)
    async with never_stalled(1.0):
        chosen = await asyncio.to_thread(choose)
    assert [key for key, _ in chosen.rows] == sorted(served.table.rows)[:10]
    assert chosen.total == len(served.table.rows)
    everything = served.prepare_rows(served.encoding(None, None, False), limit=10**30)()
    assert [key for key, _ in everything.rows] == sorted(served.table.rows)


async def test_a_missing_key_delays_no_other_client(
    pipeline: Pipeline, server: Server, http: httpx.AsyncClient
) -> None:
    dice = random.Random(1)
    for number in range(1_000):
        city = "".join(dice.choices("ab", k=199))
        pipeline.count(city, number)
    pipeline.flush()
    await until(lambda: len(server.context.views["by_city"].table) == 1_000)
    async with never_stalled(1.0):
        answer = await http.get("/v1/views/by_city/" + "".join(dice.choices("ab", k=199)))
    assert (answer.status_code, "the key is city" in answer.text) == (404, True)
