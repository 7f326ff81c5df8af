"""A request that finds no room waits a moment, without delaying what is sent to Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tests.collect import collector_processes
from tests.collect.collector_state import balance, counted
from tests.collect.conftest import Collector, click, collect, problem, shop, until

from millstream.collect.capacity.body_memory import BodyMemory
from millstream.collect.capacity.wait_queue import Overloaded, WaitQueue
from millstream.collect.journal.disk import Disk
from millstream.log.broker import Broker
from millstream.log.settings import LogSettings

JOURNAL = {"max_bytes": 64 << 10, "segment_bytes": 8 << 10}


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Kafka that a test may pause."""
    with Broker(tmp_path_factory.mktemp("kafka-home"), memory="256m") as broker:
        yield broker


@pytest.fixture
def own_log(own_broker: Broker) -> LogSettings:
    return LogSettings(bootstrap=own_broker.bootstrap)


@contextlib.contextmanager
def standstill(broker: Broker) -> Iterator[None]:
    """Kafka runs, and does not answer."""
    os.kill(broker.pid, signal.SIGSTOP)
    while any(_is_running(thread) for thread in Path(f"/proc/{broker.pid}/task").iterdir()):
        time.sleep(0.001)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def _is_running(thread: Path) -> bool:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] != "T"


@contextlib.contextmanager
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is written to disk."""
    go_on, sync = threading.Event(), Disk.sync

    def sync_later(disk: Disk, descriptor: int) -> None:
        go_on.wait()
        sync(disk, descriptor)

    monkeypatch.setattr(Disk, "sync", sync_later)
    try:
        yield
    finally:
        go_on.set()


def ticks(count: int, first: int = 0) -> bytes:
    return b"\n".join(b'{"id": %d}' % number for number in range(first, first + count))


async def waiting(collector: Collector, requests: int) -> None:
    async def are() -> bool:
        return await counted(collector, "waiting", "") == requests

    await until(are)


# Lines on the fast path, and lines through ASGI.
@pytest.mark.parametrize("padding", [0, 70_000])
async def test_more_senders_than_the_window_allows_wait_and_are_not_refused(
    app_name: str, log_settings: LogSettings, tmp_path: Path, padding: int
) -> None:
    senders, posts, batch = 16, 20, 100
    limits = {"max_pending_events": 200, "room_timeout": 30.0}
    statuses: Counter[int] = Counter()

    async def send(collector: Collector, sender: int) -> None:
        for post in range(posts):
            body = ticks(batch, (sender * posts + post) * batch) + b" " * padding
            statuses[(await collector.post("ticks?ack=none", body)).status_code] += 1

    async with collect(shop(app_name), log_settings, tmp_path, **limits) as collector:
        async with asyncio.TaskGroup() as tasks:
            for sender in range(senders):
                tasks.create_task(send(collector, sender))
        assert statuses == {204: senders * posts}
        assert await counted(collector, "refused_total", "ticks") == 0
    logged = [record.value or b"" for record in await collector.logged("ticks")]
    assert sorted(logged) == sorted(ticks(senders * posts * batch).split(b"\n"))


@pytest.mark.parametrize("padding", [0, 70_000])
async def test_while_kafka_is_paused_an_unjournaled_post_waits_and_then_gets_a_503(
    own_broker: Broker, own_log: LogSettings, app_name: str, tmp_path: Path, padding: int
) -> None:
    limits = {"max_pending_events": 10, "room_timeout": 0.5}
    body = ticks(10) + b" " * padding
    async with collect(shop(app_name), own_log, tmp_path, **limits) as collector:
        with standstill(own_broker):
            assert (await collector.post("ticks", body)).status_code == 204
            began = time.monotonic()
            refused = await collector.post("ticks", body)
            assert time.monotonic() - began >= 0.5
            assert "10 events of" in str(problem(refused, 503)["detail"])
            assert int(refused.headers["retry-after"]) >= 1
            assert await counted(collector, "refused_total", "ticks") == 1
            assert await counted(collector, "waiting", "") == 0
            assert await counted(collector, "body_bytes", "") == 0
        assert await balance(collector, "ticks") == 0
    assert len(await collector.logged("ticks")) == 10  # what was refused is nowhere


@pytest.mark.parametrize("padding", [0, 70_000])
async def test_waiting_requests_are_accepted_in_order_when_kafka_continues(
    own_broker: Broker, own_log: LogSettings, app_name: str, tmp_path: Path, padding: int
) -> None:
    limits = {"max_pending_events": 10, "room_timeout": 60.0}
    async with collect(shop(app_name), own_log, tmp_path, **limits) as collector:
        with standstill(own_broker):
            assert (await collector.post("ticks", ticks(10))).status_code == 204
            posts = []
            for number in range(5):
                body = ticks(10, 10 + number * 10) + b" " * padding
                posts.append(asyncio.create_task(collector.post("ticks", body)))
                await waiting(collector, number + 1)
            # Nobody else has to wait for them: the journal has room.
            local = await collector.post("clicks?ack=local", click(1))
            assert local.status_code == 202
        assert [(await post).status_code for post in posts] == [204] * 5
        assert await counted(collector, "body_bytes", "") == 0
    logged = [record.value for record in await collector.logged("ticks")]
    assert logged == ticks(60).split(b"\n")
    times = [record.timestamp for record in await collector.logged("ticks")]
    assert times == sorted(times)  # collected when they were let in


@pytest.mark.parametrize("size", [3_000, 5_000])  # with the head of a request, and in pieces
@pytest.mark.parametrize("key", ["", "once"])  # of those with one, the events are looked at first
async def test_requests_wait_for_a_full_journal_to_drain(
    own_broker: Broker, own_log: LogSettings, app_name: str, tmp_path: Path, size: int, key: str
) -> None:
    limits = {"journal": JOURNAL, "max_pending_events": 5, "room_timeout": 0.05, "stop_timeout": 9}
    async with collect(shop(app_name), own_log, tmp_path / "a", **limits) as collector:
        with standstill(own_broker):
            taken = await _fill(collector)
            assert await counted(collector, "refused_total") == 1
    limits["room_timeout"] = 60.0
    async with collect(shop(app_name), own_log, tmp_path / "b", **limits) as collector:
        with standstill(own_broker):
            full = asyncio.create_task(_fill(collector))
            await waiting(collector, 1)
            more = {"idempotency-key": key} if key else {}
            body = click(-1, name="x" * size)
            post = asyncio.create_task(collector.post("clicks", body, headers=more))
            await waiting(collector, 2)
            full.cancel()
        assert (await post).status_code == 200
        assert await counted(collector, "refused_total") == 0
    keys = Counter(int(record.key or b"") for record in await collector.logged("clicks"))
    assert keys[-1] == 1
    assert keys[0] == 2  # once for each collector
    assert taken < len(keys)


async def test_requests_wait_for_a_disk_that_is_stuck_for_a_moment(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    journal = {"retry_seconds": 0.2}
    async with collect(
        shop(app_name), log_settings, tmp_path, journal=journal, room_timeout=30.0
    ) as collector:
        assert (await collector.post("clicks", click(1))).status_code == 200
        _take_nothing(tmp_path / "journal" / "0")
        # This one was on its way to the disk already, the next one finds that it takes nothing.
        assert (await collector.post("clicks", click(2))).status_code == 503
        assert (await collector.post("clicks", click(3))).status_code == 200
        keys = [record.key for record in await collector.logged("clicks")]
    assert keys == [b"1", b"3"]


async def test_bodies_that_wait_do_not_fill_the_memory(
    own_broker: Broker, own_log: LogSettings, app_name: str, tmp_path: Path
) -> None:
    senders, size = 100, 1 << 20
    limits: dict[str, Any] = {
        "max_pending_events": 10,
        "max_body": size,
        "max_body_memory": 4 << 20,
    }
    with collector_processes.collector(
        shop, app_name, own_log, tmp_path / "home", **limits
    ) as running:
        url = await asyncio.to_thread(running.ready)
        async with httpx.AsyncClient(base_url=url, timeout=60.0) as http:
            collector = Collector(shop(app_name), own_log, url, http)
            assert (await collector.post("ticks", ticks(1))).status_code == 204
            before = _resident(running.process.pid)
            with standstill(own_broker):
                assert (await collector.post("ticks", ticks(10, 1))).status_code == 204
                async with asyncio.TaskGroup() as tasks:
                    statuses = [
                        tasks.create_task(_post_raw(url, "ticks", ticks(5).ljust(size - 1)))
                        for _ in range(senders)
                    ]
                    most = 0
                    while not all(task.done() for task in statuses):
                        most = max(most, await counted(collector, "body_bytes", ""))
                        await asyncio.sleep(0.02)
                assert Counter(task.result() for task in statuses) == {503: senders}
                assert size <= most <= limits["max_body_memory"]
            # Of 100 MB; what comes with a head, or before a socket is not read on, is in memory.
            assert _resident(running.process.pid) - before < 50 << 20
            assert await counted(collector, "refused_total", "ticks") == senders


async def test_bodies_that_go_to_a_slow_disk_do_not_fill_the_memory_either(
    app_name: str, log_settings: LogSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    senders, size = 20, 1 << 20
    limits = {"max_body": size, "max_body_memory": 2 << 20, "room_timeout": 60.0}
    body = b"\n".join(b'{"text": "%01000d"}' % n for n in range(1_000))
    async with collect(shop(app_name), log_settings, tmp_path, **limits) as collector:
        with slow_disk(monkeypatch):
            posts = [
                asyncio.create_task(collector.post("notes?ack=local", body)) for _ in range(senders)
            ]
            # Three are on their way to the disk; who comes behind waits, for memory or for them.
            await waiting(collector, senders - 3)
            most = await counted(collector, "body_bytes", "")
        while not all(post.done() for post in posts):
            most = max(most, await counted(collector, "body_bytes", ""))
            await asyncio.sleep(0.05)
        assert {(await post).status_code for post in posts} == {202}
        # Read, or waiting to be; and on the way to the disk, or to be unpacked, with the one more
        # that was let in when there was room for a part of it.
        assert 3_000_000 <= most <= 5 << 20
        assert await counted(collector, "refused_total", "notes") == 0
        assert await counted(collector, "body_bytes", "") == 0


async def test_senders_that_announce_much_and_send_nothing_do_not_block_others(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    size = 1 << 20
    limits = {"max_body": size, "max_body_memory": 4 << 20, "room_timeout": 5.0}
    async with collect(shop(app_name), log_settings, tmp_path, **limits) as collector:
        silent = [await _begin(collector.url, "notes", size) for _ in range(8)]
        body = b'{"text": "%b"}' % (b"x" * (size - 100))
        answers = await asyncio.gather(*(collector.post("notes", body) for _ in range(4)))
        assert {answer.status_code for answer in answers} == {422}  # too large for Kafka
        for _, writer in silent:
            writer.close()

        async def none_held() -> bool:
            return await counted(collector, "body_bytes", "") == 0

        await until(none_held)


async def test_the_wait_queue_is_first_in_first_out_with_a_time_limit() -> None:
    queue, room, taken = WaitQueue(0.2), list[None](), list[int]()

    async def attempt(number: int) -> int:
        if not room:
            raise Overloaded("no room")
        room.pop()
        taken.append(number)
        return number

    tasks = [asyncio.create_task(queue.run(partial(attempt, number))) for number in range(5)]
    await until(lambda: len(queue) == 5)
    for freed in (2, 1):
        room.extend([None] * freed)
        queue.notify()
        await until(lambda: not room)
    with pytest.raises(Overloaded):
        await tasks[4]
    assert (taken, len(queue)) == ([0, 1, 2], 0)
    room.append(None)
    assert await queue.run(partial(attempt, 9)) == 9
    patient = WaitQueue(600.0)
    waiting = [asyncio.create_task(patient.run(partial(attempt, number))) for number in range(3)]
    await until(lambda: len(patient) == 3)
    patient.release_all()
    results = await asyncio.gather(*waiting, *tasks[3:4], return_exceptions=True)
    assert all(isinstance(result, Overloaded) for result in results)


async def test_a_body_counts_with_its_announced_size_only_while_the_sender_is_quick() -> None:
    memory = BodyMemory(1_000_000, 900_000, WaitQueue(0.05))
    with await memory.reserve(600_000) as quick:
        assert memory.held == 600_000
        with pytest.raises(Overloaded, match="600,000 bytes"):
            await memory.reserve(500_000)
        await quick.grow(100_000)
        assert memory.held == 600_000
        await until(lambda: memory.held == 100_000)
        with await memory.reserve(500_000):  # there is room for another now
            await quick.grow(300_000)
            assert memory.held == 900_000
            with pytest.raises(Overloaded):
                await quick.grow(200_000)
        with memory.hold(1_000), pytest.raises(Overloaded):
            memory.hold(999_000)
    with await memory.reserve(0) as unknown:  # nobody knows how long it is
        assert memory.held == 0
        await unknown.grow(70_000)
        assert memory.held == 70_000
    assert memory.held == 0


def _take_nothing(folder: Path) -> None:
    """Make the disk full for the current segment; the next one can be begun."""
    with open("/dev/full", "wb") as full:
        for file in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(file).startswith(f"{folder}/0"):
                    os.dup2(full.fileno(), int(file.name))


async def _fill(collector: Collector) -> int:
    """Post until the journal is full; how many were accepted."""
    for number in range(1_000):
        body = click(number, name="x" * 2_000)
        if (await collector.post("clicks?ack=local", body)).status_code != 202:
            return number
    raise AssertionError("the journal does not get full")


async def _begin(
    url: str, stream: str, size: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host = urlsplit(url)
    reader, writer = await asyncio.open_connection(host.hostname, host.port)
    writer.write(
        f"POST /v1/streams/{stream} HTTP/1.1\r\nhost: localhost\r\n"
        f"content-length: {size}\r\n\r\n".encode()
    )
    await writer.drain()
    return reader, writer


async def _post_raw(url: str, stream: str, body: bytes) -> int:
    reader, writer = await _begin(url, stream, len(body))
    try:
        writer.write(body)
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()


def _resident(pid: int | None) -> int:
    """The peak memory of a process in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
