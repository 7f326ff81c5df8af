"""The benchmark's sender follows its schedule."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvloop
from bench.load import Load, Plan, batch_size, rows

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@asynccontextmanager
async def collector(first_answer_after: float = 0.0) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A collector that delays its first answer."""
    bodies: list[bytes] = []
    talks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.add(task)
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length:")[2].split()[0])
                bodies.append(await reader.readexactly(length))
                if len(bodies) == 1:
                    await asyncio.sleep(first_answer_after)
                writer.write(OK)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", bodies
        async with asyncio.timeout(10):
            await asyncio.gather(*talks)


def on_uvloop(
    test: Callable[[], Coroutine[Any, Any, None]],
) -> Callable[[], None]:
    """Use the benchmark's event loop: its transports differ from asyncio's."""

    def run() -> None:
        uvloop.run(test())

    return run


@on_uvloop
async def test_every_event_is_posted_once_and_its_answer_is_timed() -> None:
    async with collector() as (url, bodies):
        load = Load(url, Plan(10, 500, 0.2, time.time_ns()))
        await load.run()
        reported = list(rows(load))
        load.close()
    sent = sorted(json.loads(body)["id"] for body in bodies)
    assert sent == list(range(10, 110)) == [row["id"] for row in reported]
    assert all(row["status"] == 200 and row["acked"] >= row["due"] for row in reported)


@on_uvloop
async def test_a_stalled_answer_does_not_hold_up_the_schedule() -> None:
    async with collector(first_answer_after=0.5) as (url, _):
        load = Load(url, Plan(0, 100, 0.2, time.time_ns()))
        await load.run()
        waits = [(row["acked"] - row["due"]) / 1e9 for row in rows(load)]
        load.close()
    assert waits[0] >= 0.5
    assert sorted(waits)[len(waits) // 2] < 0.4


def test_a_plan_spreads_the_events_evenly() -> None:
    plan = Plan(0, 3_000, 2, start=0)
    assert plan.batch == 3
    assert plan.posts * plan.batch == 6_000
    assert abs(plan.due(plan.posts) - 2_000_000_000) < 1_000_000
    assert [*plan.ids(0), *plan.ids(1)] == list(range(6))
    assert [batch_size(rate) for rate in (100, 1_000, 3_000)] == [1, 1, 3]
