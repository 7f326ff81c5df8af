"""A connection with its subscriptions: changed, paused, limited, too slow, and fuzzed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket as sockets
import time
import tracemalloc
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.serve.pipeline import SECONDS, Pipeline, Socket, events, following, socket
from tests.wait_until import until

from millstream.serve.service import Server
from millstream.serve.transports.client_messages import RECEIVED
from millstream.serve.transports.connection import Connection


async def has_rows(server: Server, count: int, view: str = "by_city") -> None:
    await until(lambda: len(server.context.views[view].table) == count)


async def next_of(client: Socket, kind: str) -> dict[str, Any]:
    message = await client.next()
    while message["type"] != kind:
        message = await client.next()
    return message


async def test_a_filter_changes_without_a_new_snapshot(pipeline: Pipeline, server: Server) -> None:
    for n, city in enumerate(("Rome", "Oslo", "Bern"), 1):
        pipeline.count(city, n)
    await has_rows(server, 3)
    async with socket(server) as client:
        first = await client.subscribe(view="by_city", where="n < 3")
        assert [row["key"] for row in first["rows"]] == [["Oslo"], ["Rome"]]
        await client.send(type="update", id="a", where="n > 1")
        messages = [await client.next() for _ in range(3)]
        changes = {message["key"][0]: message["op"] for message in messages[:2]}
        assert changes == {"Rome": "delete", "Bern": "upsert"}
        assert (messages[2]["type"], messages[2]["paused"]) == ("updated", False)
        pipeline.count("Rome", 5)
        assert (await client.next())["row"] == {"city": "Rome", "n": 5}


async def test_other_columns_come_with_a_snapshot(pipeline: Pipeline, server: Server) -> None:
    pipeline.count("Rome", 1)
    await has_rows(server, 1)
    async with socket(server) as client:
        await client.subscribe(view="by_city")
        await client.send(type="update", id="a", select=["n"])
        snapshot = await client.next()
        assert (snapshot["type"], snapshot["rows"][0]["row"]) == ("snapshot", {"n": 1})
        assert (await client.next())["type"] == "updated"


async def test_a_paused_subscription_continues_where_it_stopped(
    pipeline: Pipeline, server: Server
) -> None:
    async with socket(server) as client:
        await client.subscribe(view="by_city")
        await client.send(type="pause", id="a")
        assert await client.next() == {"type": "updated", "id": "a", "paused": True}
        for n in range(1, 4):
            pipeline.count("Rome", n)
        await has_rows(server, 1)
        await client.send(type="ping")
        assert (await client.next())["type"] == "pong"
        await client.send(type="resume", id="a")
        assert (await client.next())["paused"] is False
        assert [(await client.next())["row"]["n"] for _ in range(3)] == [1, 2, 3]


async def test_after_a_long_pause_changes_come_from_the_log(pipeline: Pipeline) -> None:
    async with pipeline.server(recent_changes=5) as server, socket(server) as client:
        await client.subscribe(view="by_city")
        await client.send(type="pause", id="a")
        await client.next()
        for n in range(1, 51):
            pipeline.count("Rome", n)
        pipeline.flush()
        rows = server.context.views["by_city"].table.rows
        await until(lambda: rows.get('["Rome"]', {}).get("n") == 50)
        await client.send(type="resume", id="a")
        await client.next()
        assert [(await client.next())["row"]["n"] for _ in range(50)] == list(range(1, 51))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"view": "by_city", "when_slow": "sample"}, "belong together"),
    ({"view": "by_city", "sample": 3}, "belong together"),
    ({"view": "by_city", "max_rate": 0}, "max_rate 0 is not between"),
    ({"view": "by_city", "max_rate": -1}, "max_rate -1 is not between"),
    ({"view": "by_city", "max_rate_per_key": 1e99}, "max_rate_per_key 1e.99 is not between"),
    ({"view": "by_city", "max_bytes": 10}, "max_bytes 10 is too low"),
    ({"ledger": "per_minute", "when_slow": "conflate"}, "must be added up"),
    ({"ledger": "per_minute", "when_slow": "sample", "sample": 1}, "must be added up"),
    ({"ledger": "per_minute", "max_rate_per_key": 1}, "must be added up"),
    ({"stream": "rsvps", "when_slow": "conflate"}, "has no key"),
    ({"view": "newest", "max_rate_per_key": 3}, "has no key"),
    ({"view": "by_city", "after": "2026-11-01T00:00"}, "has no time zone"),
    ({"view": "by_city", "after": "2026-13-01T00:00Z"}, "position"),
]


async def test_limits_that_make_no_sense_are_errors_that_say_why(server: Server) -> None:
    async with socket(server) as client:
        for asked, complaint in WRONG:
            answer = await client.subscribe(**asked)
            assert (answer["type"], answer["id"]) == ("error", "a"), asked
            assert re.search(complaint, answer["detail"]), answer
        await client.send(type="update", id="b", max_rate=3)
        assert "no subscription 'b'" in (await client.next())["detail"]
        await client.send(type="update", max_rate=3)
        assert "can only change max_bytes" in (await client.next())["detail"]
        await client.subscribe(view="by_city")
        await client.send(type="update", id="a", where="m = 1")
        assert "no column 'm'" in (await client.next())["detail"]


async def test_conflated_changes_are_counted_everywhere(
    pipeline: Pipeline, server: Server, http: httpx.AsyncClient
) -> None:
    async with socket(server) as client:
        await client.subscribe(view="by_city", max_rate_per_key=2)
        seen, skipped = [0], 0
        for n in range(1, 101):
            pipeline.count("Rome", n)
        while seen[-1] < 100:
            message = await client.next()
            seen.append(message["row"]["n"])
            skipped += message.get("skipped", 0)
        assert len(seen) - 1 + skipped == 100
        assert len(seen) < 10
        text = (await http.get("/metrics")).text
        labels = 'view="by_city",reason="max_rate_per_key"'
        assert f"millstream_serve_skipped_total{{{labels}}} {skipped}" in text


async def test_bytes_per_second_are_limited_on_the_whole_connection(
    pipeline: Pipeline, server: Server
) -> None:
    async with socket(server) as client:
        await client.subscribe(view="by_city", max_bytes=40_000)
        began, text = time.monotonic(), "x" * 1000
        for n in range(1, 51):
            pipeline.put("by_city", [text], {"city": text, "n": n}, n)
        message = await client.next()
        while message["type"] != "change" or message["row"]["n"] < 50:
            message = await client.next()
        assert time.monotonic() - began > 1.5, "100 kB, of which 10 kB at once"
        await client.send(type="update", max_bytes=None)
        assert await next_of(client, "updated") == {"type": "updated", "id": None, "paused": False}


async def test_a_subscription_starts_at_a_time_as_far_back_as_the_log_reaches(
    pipeline: Pipeline,
) -> None:
    async with pipeline.server(recent_changes=3, replay_limit=5) as server:
        for n in range(1, 11):
            pipeline.count("Rome", n)
        pipeline.flush()
        await until(lambda: server.context.views["by_city"].table.ring.end == 10)
        last = server.context.views["by_city"].table.ring[9].timestamp
        await until(lambda: time.time() * 1000 > last + 2)
        between = datetime.now(UTC).isoformat()
        pipeline.count("Rome", 11)
        pipeline.flush()
        await until(lambda: server.context.views["by_city"].table.ring.end == 11)
        async with socket(server) as client:
            message = await client.subscribe(view="by_city", after=between)
            assert (message["type"], message["row"]["n"]) == ("change", 11)
            message = await client.subscribe(id="b", view="by_city", after="2001-01-01T00:00Z")
            seen = [message["row"]["n"], *[(await client.next())["row"]["n"] for _ in range(10)]]
            assert seen == list(range(1, 12)), "more than replay_limit, because of the time"
        async with httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http:
            asked = {"after": between, "wait": "5"}
            answer = (await http.get("/v1/views/by_city/changes", params=asked)).json()
            assert [change["row"]["n"] for change in answer["changes"]] == [11]
            path = "/v1/views/by_city/changes?after=2001-01-01T00:00Z"
            async with events(http, path) as stream:
                assert (await following(stream))["row"]["n"] == 1


async def test_events_come_in_pages_and_only_the_last_one_has_an_id(pipeline: Pipeline) -> None:
    for n in range(500):
        pipeline.count(f"city {n}", 1)
    pipeline.flush()
    path, identified, cities = "/v1/views/by_city/changes", [], set()
    async with (
        pipeline.server(page_bytes=4096) as server,
        httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http,
    ):
        accept = {"Accept": "text/event-stream"}
        async with http.stream("GET", path, headers=accept) as response:
            has_id, is_last = False, False
            lines = response.aiter_lines()
            while not is_last:
                line = await anext(lines)
                has_id = has_id or line.startswith("id: ")
                if line.startswith("data: "):
                    page = json.loads(line.removeprefix("data: "))
                    is_last = page["last"]
                    identified.append((has_id, is_last))
                    cities |= {row["key"][0] for row in page["rows"]}
        whole = (await http.get(path)).json()
    assert (len(cities), len(identified) > 3) == (500, True)
    assert all(has == last for has, last in identified)
    assert (len(whole["rows"]), whole["total"], whole["truncated"]) == (500, 500, False)


async def test_events_are_conflated_and_limited_by_parameters(
    pipeline: Pipeline, server: Server, http: httpx.AsyncClient
) -> None:
    path = "/v1/views/by_city/changes"
    async with events(http, f"{path}?when_slow=sample&sample=5") as stream:
        await following(stream)
        for n in range(1, 101):
            pipeline.count("Rome", n)
        pipeline.flush()
        got, skipped = 0, 0
        event = await following(stream)
        while True:
            got, skipped = got + 1, skipped + event.get("skipped", 0)
            if event["row"]["n"] == 100:
                break
            event = await following(stream)
        assert got + skipped == 100
        assert skipped > 50
    accept = {"Accept": "text/event-stream"}
    for wrong, complaint in (
        ("when_slow=disconnect", "use buffer, conflate, sample"),
        ("when_slow=sample", "belong together"),
        ("max_rate=fast", "is not a number"),
        ("after=2026-11-01T00:00:00", "has no time zone"),
    ):
        answer = await http.get(f"{path}?{wrong}", headers=accept)
        assert (answer.status_code, complaint in answer.text) == (400, True), answer.text


@contextlib.asynccontextmanager
async def silent(server: Server) -> AsyncIterator[Socket]:
    """A client that never reads, with a small buffer."""
    raw = sockets.socket()
    raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 8192)
    raw.setblocking(False)
    host, port = server.url.removeprefix("http://").split(":")
    await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
    known = set(server.context.connections)
    async with socket(server, sock=raw, max_queue=1, close_timeout=0.1) as client:
        await until(lambda: set(server.context.connections) - known)
        (connection,) = set(server.context.connections) - known
        assert isinstance(connection, Connection)
        peer = connection._transport.underlying_transport.get_extra_info("socket")
        peer.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, 8192)  # the kernel's are large
        yield client


async def test_fifty_clients_that_never_read_cost_little_and_disturb_nobody(
    pipeline: Pipeline,
) -> None:
    text, policies = "x" * 2000, ["buffer", "conflate", "buffer", "conflate"]
    async with pipeline.server(buffer_bytes=20_000) as server, contextlib.AsyncExitStack() as stack:
        for number in range(50):
            client = await stack.enter_async_context(silent(server))
            policy = policies[number % 4]
            await client.send(type="subscribe", id="a", view="by_city", when_slow=policy)
        readers = [await stack.enter_async_context(socket(server)) for _ in range(50)]
        for reader in readers:
            await reader.subscribe(view="by_city")
        await until(lambda: len(server.context.views["by_city"].subscribers) == 100)

        async def read(reader: Socket) -> float:
            slowest, seen = 0.0, 0
            while seen < 300:
                message = await reader.next()
                assert message["type"] == "change", message
                slowest = max(slowest, time.monotonic() - sent[message["row"]["n"]])
                seen = message["row"]["n"]
            return slowest

        sent: dict[int, float] = {}
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        reading = [asyncio.create_task(read(reader)) for reader in readers]
        for n in range(1, 301):
            sent[n] = time.monotonic()
            pipeline.put("by_city", ["Rome"], {"city": text, "n": n}, n)
            if n % 10 == 0:
                pipeline.flush()
                await asyncio.sleep(0)
        slowest = max(await asyncio.gather(*reading))
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        # 300 changes of 2 kB are in the ring. Beside them, a client has `buffer_bytes` and a turn.
        assert grown < 5_000_000 + 50 * (20_000 + 65_536 + 10_000)
        full = [each for each in server.context.connections if getattr(each, "_is_full", False)]
        assert len(full) == 50
        assert slowest < 20.0
        assert len(server.context.connections) == 100, "nobody was disconnected"


async def test_a_slow_client_is_warned_before_it_is_disconnected(pipeline: Pipeline) -> None:
    async with pipeline.server(buffer_bytes=20_000) as server, silent(server) as client:
        await client.subscribe(view="by_city", when_slow="disconnect")
        text = "x" * 4000

        async def write(start: int, end: int) -> None:
            for n in range(start, end):
                pipeline.put("by_city", [text], {"city": text, "n": n}, n)
            pipeline.flush()
            table = server.context.views["by_city"].table
            await until(partial(lambda t, e: t.ring.end >= e - 1, table, end))

        await write(1, 400)
        warned = await next_of(client, "lag")
        assert "4008" in warned["warning"]
        assert warned["behind"] > 0
        await write(400, 3000)
        await until(lambda: not len(server.context.connections))
        with contextlib.suppress(Exception):
            while True:
                await asyncio.wait_for(client.connection.recv(), SECONDS)
        assert client.connection.close_code == 4008


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["a", "b", "by_city", "n > 1", "conflate", "sample", "buffer", "x:0=1"]),
    st.text(max_size=20),
    st.lists(st.sampled_from(["n", "city", "", "q"]), max_size=3),
)
types = [each.__struct_config__.tag for each in RECEIVED]
fields = sorted({name for each in RECEIVED for name in each.__struct_fields__})
fuzzed = st.fixed_dictionaries(
    {"type": st.sampled_from(types)},
    optional={name: values for name in fields},
)


@pytest.mark.kafka
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(fuzzed, max_size=20))
def test_no_message_of_a_client_breaks_its_connection(
    fuzz_server: FuzzServer, messages: list[dict[str, Any]]
) -> None:
    fuzz_server.try_messages(messages)


class FuzzServer:
    """A server in this thread's loop, for a test that hypothesis runs many times."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: Server) -> None:
        self._loop = loop
        self._server = server

    def try_messages(self, messages: list[dict[str, Any]]) -> None:
        self._loop.run_until_complete(self._try(messages))

    async def _try(self, messages: list[dict[str, Any]]) -> None:
        async with socket(self._server) as client:
            await client.send(type="subscribe", id="a", view="by_city")
            for message in messages:
                await client.connection.send(json.dumps(message))
            await client.send(type="ping")
            await next_of(client, "pong")


@pytest.fixture
def fuzz_server(pipeline: Pipeline) -> Any:
    loop = asyncio.new_event_loop()
    stack = contextlib.AsyncExitStack()
    server = loop.run_until_complete(stack.enter_async_context(pipeline.server()))
    yield FuzzServer(loop, server)
    loop.run_until_complete(stack.aclose())
    loop.close()
