"""A server that ends sends its clients elsewhere, and they miss nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.nginx import Nginx, free_port
from tests.serve.pipeline import SECONDS, Pipeline, socket
from tests.wait_until import until
from websockets.exceptions import ConnectionClosed, InvalidStatus

from millstream.client import Client
from millstream.client.messages import Change, Gap, Snapshot
from millstream.serve.drain import drain
from millstream.serve.service import Server

PROGRAM = """
import sys
from pathlib import Path
from millstream.runtime.home import Home
from millstream.log.settings import LogSettings
from millstream.serve.service import run
from millstream.serve.settings import ServeSettings
from millstream.settings import Settings
from tests.serve.pipeline import declare

name, bootstrap, home, port, seconds = sys.argv[1:]
serve = ServeSettings(port=port, drain_seconds=seconds)
run(declare(name), Settings(log=LogSettings(bootstrap=bootstrap), serve=serve), Home(Path(home)))
"""
EVENTS = {"Accept": "text/event-stream"}


@contextlib.asynccontextmanager
async def process(
    pipeline: Pipeline, home: Path, port: int, seconds: float
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A server as a process of its own, which is ready."""
    arguments = (pipeline.app.name, pipeline.log.bootstrap, home, port, seconds)
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, *map(str, arguments), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert running.stdout is not None
        line = await asyncio.wait_for(running.stdout.readline(), SECONDS)
        assert line.startswith(b"serve ready")
        yield running
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()


async def ends(
    running: asyncio.subprocess.Process,
    *signals: signal.Signals,
    is_draining: Callable[[], Awaitable[bool]] | None = None,
) -> float:
    """Send the signals, the second one when it drains; the seconds until it has ended."""
    began = time.monotonic()
    first, *others = signals
    running.send_signal(first)
    for number in others:  # the kernel merges two of the same kind if the first one still waits
        assert is_draining is not None
        await until(is_draining)
        running.send_signal(number)
    assert await asyncio.wait_for(running.wait(), SECONDS) == 0
    return time.monotonic() - began


async def test_a_server_that_drains_refuses_everything_new_and_says_that_it_is_not_ready(
    server: Server, http: httpx.AsyncClient
) -> None:
    assert (await http.get("/health/ready")).status_code == 200
    await drain(server.context, 10, asyncio.Event())  # no client is there: it ends at once
    for path in ("/health/ready", "/v1/views", "/v1/views/by_city/changes", "/v1/connections"):
        answer = await http.get(path)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.headers["connection"] == "close"
    assert (await http.get("/health/live")).status_code == 200
    assert (await http.get("/metrics")).status_code == 200
    with pytest.raises(InvalidStatus) as refused:
        async with socket(server):
            pass
    assert refused.value.response.status_code == 503
    assert refused.value.response.headers["retry-after"] == "1"


async def test_clients_are_sent_away_one_after_the_other(server: Server) -> None:
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(socket(server)) for _ in range(10)]
        ended: list[float] = []

        async def wait(client: Any) -> None:
            with pytest.raises(ConnectionClosed) as closed:
                await client.next()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012
            ended.append(time.monotonic())

        async with asyncio.TaskGroup() as tasks:
            for client in clients:
                tasks.create_task(wait(client))
            await until(lambda: len(server.context.connections) == 10)
            await drain(server.context, 1.0, asyncio.Event())
    assert ended[-1] - ended[0] > 0.5


async def test_a_stream_of_events_ends_with_the_time_after_which_to_connect_again(
    server: Server, http: httpx.AsyncClient
) -> None:
    async with http.stream("GET", "/v1/views/by_city/changes", headers=EVENTS) as response:
        await until(lambda: len(server.context.connections) == 1)
        await drain(server.context, 0, asyncio.Event())
        *_, retry, closed, rest = (await response.aread()).decode().split("\n\n")
    assert (retry, rest) == ("retry: 100", "")
    assert json.loads(closed.partition("data: ")[2])["code"] == 1012


async def test_a_long_poll_that_waits_is_answered(server: Server, http: httpx.AsyncClient) -> None:
    position = (await http.get("/v1/views/by_city")).json()["position"]
    params = {"after": position, "wait": 60}
    poll = asyncio.create_task(http.get("/v1/views/by_city/changes", params=params))
    await until(lambda: bool(server.context.views["by_city"].subscribers))
    await drain(server.context, 0, asyncio.Event())
    answer = await asyncio.wait_for(poll, 10)
    assert (answer.status_code, answer.json()["changes"]) == (200, [])


async def test_a_drain_takes_its_time_unless_somebody_is_in_a_hurry(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    async def connected(home: Path, *signals: signal.Signals) -> float:
        port = free_port()
        url = f"http://127.0.0.1:{port}/v1/views/by_city/changes"
        async with (
            process(pipeline, home, port, 12.0) as running,
            httpx.AsyncClient(timeout=SECONDS) as http,
            http.stream("GET", url, headers=EVENTS),
            http.stream("GET", url, headers=EVENTS),
        ):

            async def is_draining() -> bool:
                ready = await http.get(f"http://127.0.0.1:{port}/health/ready")
                return ready.status_code == 503

            return await ends(running, *signals, is_draining=is_draining)

    slow = await connected(tmp_path / "a", signal.SIGTERM)
    assert slow > 6.0  # the second of two clients has half of the time
    assert await connected(tmp_path / "b", signal.SIGTERM, signal.SIGTERM) < slow - 2.0
    assert await connected(tmp_path / "c", signal.SIGINT) < slow - 2.0


class Recorder:
    """What one client got of the view without key, whose ids are 1, 2, 3 …"""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.snapshots = 0
        self.gaps = 0

    def add(self, message: Any) -> None:
        match message:
            case Snapshot():
                self.snapshots += 1
            case Gap():
                self.gaps += 1
            case Change(row=dict(row)):
                self.ids.append(row["id"])

    def add_event(self, fields: dict[str, str]) -> None:
        match fields.get("event"):
            case "snapshot":
                self.snapshots += 1
            case "gap":
                self.gaps += 1
            case "change":
                self.ids.append(json.loads(fields["data"])["row"]["id"])


async def follow_websocket(url: str, seen: Recorder) -> None:
    async with Client(url) as client:
        async for message in client.changes("newest"):
            seen.add(message)


async def follow_events(url: str, seen: Recorder) -> None:
    """Do as EventSource does: connect again with the last id, after `retry`."""
    last, retry = "", "1000"
    async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as http:
        while True:
            headers = {**EVENTS, **({"Last-Event-ID": last} if last else {})}
            with contextlib.suppress(httpx.TransportError):
                async with http.stream("GET", "/v1/views/newest/changes", headers=headers) as found:
                    assert found.status_code == 200  # EventSource gives up after an error
                    async for fields in events_of(found):
                        last, retry = fields.get("id", last), fields.get("retry", retry)
                        seen.add_event(fields)
            await asyncio.sleep(float(retry) / 1000)


async def events_of(response: httpx.Response) -> AsyncIterator[dict[str, str]]:
    text = ""
    async for part in response.aiter_text():
        *blocks, text = (text + part).split("\n\n")
        for block in blocks:
            yield dict(line.split(": ", 1) for line in block.split("\n") if line[0] != ":")


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[Nginx]:
    folder = tmp_path / "nginx"
    folder.mkdir()
    running = Nginx(folder, [free_port(), free_port()])
    yield running
    running.stop()


@pytest.mark.timeout(180)
async def test_clients_behind_nginx_see_no_gap_and_no_repeat_while_servers_are_replaced(
    pipeline: Pipeline, nginx: Nginx, tmp_path: Path
) -> None:
    recorders = [Recorder() for _ in range(12)]
    written = 0

    async def write() -> None:
        nonlocal written
        while True:
            for _ in range(5):
                written += 1
                pipeline.append(written)
            pipeline.flush()
            await asyncio.sleep(0.05)

    async def all_have(count: int) -> None:
        await until(lambda: all(len(seen.ids) >= count for seen in recorders))

    first, second = nginx.servers
    async with (
        process(pipeline, tmp_path / "a", first, 1.0) as a,
        process(pipeline, tmp_path / "b", second, 1.0) as b,
    ):
        tasks = [
            asyncio.create_task((follow_websocket, follow_events)[number % 2](nginx.url, seen))
            for number, seen in enumerate(recorders)
        ]
        await until(lambda: all(seen.snapshots for seen in recorders))
        writing = asyncio.create_task(write())
        await all_have(100)
        await ends(a, signal.SIGTERM)
        await all_have(written + 100)
        async with process(pipeline, tmp_path / "a", first, 1.0):
            await ends(b, signal.SIGTERM)
            await all_have(written + 100)
            writing.cancel()
            pipeline.flush()
            await all_have(written)
            assert not any(task.done() for task in tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, writing, return_exceptions=True)
    for seen in recorders:
        assert seen.ids == list(range(1, written + 1))
        assert (seen.snapshots, seen.gaps) == (1, 0)
