"""Groups over several servers: members and servers come and go, and no message is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.serve.groups.members import handled, join, member, show
from tests.serve.pipeline import SECONDS, Pipeline, declare, socket
from tests.wait_until import until

from millstream.client import Client, GroupMessage
from millstream.client.backoff import Backoff
from millstream.log.settings import LogSettings
from millstream.serve.service import Server

KEYS, MESSAGES = 8, 12


@pytest.fixture
def partitions() -> int:
    return 3


@pytest.fixture
def pipeline(log_settings: LogSettings, app_name: str, partitions: int) -> Pipeline:
    log = log_settings.model_copy(update={"partitions": partitions})
    return Pipeline(app_name, log, declare(app_name))


class Record:
    """What all members did, in order."""

    def __init__(self) -> None:
        self.delivered: list[tuple[str, int]] = []
        self.handled: dict[str, set[int]] = defaultdict(set)
        self.attempts: list[int] = []

    def deliver(self, message: GroupMessage) -> tuple[str, int]:
        """Note a delivery; everything earlier of its key must be handled."""
        assert message.row is not None
        city, n = message.row["city"], message.row["n"]
        self.delivered.append((city, n))
        self.attempts.append(message.attempt)
        missing = set(range(1, n)) - self.handled[city]
        assert not missing, f"{city} {n} was delivered before {missing} were handled"
        return city, n

    @property
    def is_complete(self) -> bool:
        return len(self.handled) == KEYS and all(
            len(found) == MESSAGES for found in self.handled.values()
        )


class Members:
    """Clients that handle messages, some of them badly."""

    def __init__(self, urls: list[str], seed: int, **options: Any) -> None:
        self._urls = urls
        self._random = random.Random(seed)
        self._options = {"ack_timeout": 1.0, "max_attempts": 1000, **options}
        self.record = Record()
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, first: int, *, chaos: float = 0.0) -> None:
        """A member that connects to the server `first`; `chaos` is its share of failures."""
        urls = self._urls[first:] + self._urls[:first]
        self._tasks.append(asyncio.create_task(self._work(urls, chaos)))

    async def _work(self, urls: list[str], chaos: float) -> None:
        backoff = Backoff(first=0.05, longest=0.5)
        async with Client(*urls, backoff=backoff) as client:
            while True:
                messages = client.group("desk", "by_city", prefetch=4, **self._options)
                with contextlib.suppress(Quit):
                    async with messages:
                        async for message in messages:
                            await self._handle(message, chaos)

    async def _handle(self, message: GroupMessage, chaos: float) -> None:
        city, n = self.record.deliver(message)
        if self._random.random() < chaos:
            match self._random.choice(["nack", "silence", "quit", "die"]):
                case "nack":
                    await message.nack("a bad day")
                    return
                case "silence":
                    message.is_answered = True  # so that the loop does not acknowledge it
                    return
                case "quit":
                    raise Quit
                case "die":
                    message._socket.transport.abort()
                    return
        await asyncio.sleep(self._random.random() * 0.01)
        self.record.handled[city].add(n)

    async def finish(self) -> Record:
        """Wait until everything is handled; fails as soon as a member saw a wrong order."""
        await until(self._is_done, 120)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return self.record

    def _is_done(self) -> bool:
        for task in self._tasks:
            if task.done():
                task.result()
        return self.record.is_complete


class Quit(Exception):
    """A member leaves in the middle of a message."""


def write(pipeline: Pipeline) -> None:
    for n in range(1, MESSAGES + 1):
        for key in range(KEYS):
            pipeline.count(f"City {key}", n)
    pipeline.flush()


@pytest.mark.parametrize("partitions", [1])
async def test_a_server_without_a_partition_redirects_its_members_to_the_owner(
    pipeline: Pipeline,
) -> None:
    async with pipeline.server() as one, pipeline.server() as two, member(one) as first:
        await until(lambda: owns_partitions(one.url, two))
        async with member(two) as second:
            redirected = await second.next()
            assert redirected == {"type": "redirect", "id": "a", "url": one.url}
        async with socket(one) as third:
            await join(third)
            await until(lambda: counts_members(one, 2))
            pipeline.count("Berlin", 1)
            pipeline.count("Köln", 1)
            pipeline.flush()
            cities = {(await each.next())["row"]["city"] for each in (first, third)}
            assert cities == {"Berlin", "Köln"}


async def owns_partitions(url: str, asked: Server) -> bool:
    """Whether `asked` knows that the server at `url` owns partitions of the group."""
    servers = (await show(asked)).get("servers", ())
    return any(each["url"] == url and each["partitions"] for each in servers)


async def counts_members(server: Server, count: int) -> bool:
    return bool((await show(server)).get("members") == count)


@pytest.mark.parametrize("seed", range(3))
async def test_members_that_fail_at_random_handle_everything_in_order(
    pipeline: Pipeline, seed: int
) -> None:
    write(pipeline)
    async with pipeline.server() as one, pipeline.server() as two:
        members = Members([one.url, two.url], seed)
        for number in range(6):
            members.add(number % 2, chaos=0.2)
        record = await members.finish()
        assert max(record.attempts) > 1


async def test_a_server_that_joins_takes_over_partitions_without_a_loss(
    pipeline: Pipeline,
) -> None:
    write(pipeline)
    async with pipeline.server() as one:
        urls = [one.url]
        members = Members(urls, seed=1)
        members.add(0)
        await until(lambda: len(members.record.delivered) > KEYS)
        async with pipeline.server() as two:
            urls.append(two.url)
            members.add(1)
            await until(lambda: owns_partitions(two.url, one))
            await members.finish()
            await until(lambda: handled(one, lag=0, pending=0))


async def test_members_of_a_server_that_stops_continue_on_another_one(pipeline: Pipeline) -> None:
    async with pipeline.server() as one:
        async with pipeline.server() as two:
            members = Members([one.url, two.url], seed=2)
            members.add(0)
            members.add(1)
            await until(lambda: owns_partitions(one.url, one))
            await until(lambda: owns_partitions(two.url, one))
            write(pipeline)
            await until(lambda: len(members.record.delivered) > KEYS)
        await members.finish()


PIPELINE = """
from tests.serve.pipeline import declare

app = declare({name!r})
"""


@contextlib.asynccontextmanager
async def process(pipeline: Pipeline, folder: Path) -> AsyncIterator[tuple[int, str]]:
    """A `millstream serve` of its own; its pid and URL."""
    file = folder / "pipeline.py"
    file.write_text(PIPELINE.format(name=pipeline.app.name))
    log = pipeline.log
    serve = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "millstream", "serve", str(file), "--serve-port", "0"),
        *("--home", str(folder / "home"), "--set", f"log.bootstrap={log.bootstrap}"),
        *("--set", f"log.partitions={log.partitions}"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    try:
        assert serve.stdout is not None
        line = await asyncio.wait_for(serve.stdout.readline(), SECONDS)
        assert line.startswith(b"serve ready on "), line
        yield serve.pid, line.decode().split()[-1]
    finally:
        with contextlib.suppress(ProcessLookupError):
            serve.kill()
        await serve.wait()


async def test_members_of_a_server_that_is_killed_continue_on_another_one(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    async with pipeline.server() as one, process(pipeline, tmp_path) as (pid, url):
        members = Members([one.url, url], seed=3)
        members.add(0)
        members.add(1)
        await until(lambda: owns_partitions(one.url, one))
        await until(lambda: owns_partitions(url, one))
        write(pipeline)
        await until(lambda: len(members.record.delivered) > KEYS)
        os.kill(pid, signal.SIGKILL)
        await members.finish()
        await until(lambda: handled(one, lag=0, pending=0))
