"""What every reader must do, tested against a real peer that misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tests.collect.recording_output import RecordingOutput
from tests.connectors.cases import CASES
from tests.connectors.conformance_case import Case, running, stop
from tests.wait_until import until

_POOLS = ("asyncio", "uvloop")  # their thread names
# A reader that leaks something leaks it each time. Others in this process may open something
# meanwhile: Spark's gateway does, when Python frees proxies of Java objects.
_ATTEMPTS = 3


def marks_of(case: type[Case]) -> list[pytest.MarkDecorator]:
    return [getattr(pytest.mark, case.service)] if case.service else []


def those(condition: Callable[[type[Case]], bool] = lambda case: True) -> pytest.MarkDecorator:
    """Run a test with each kind of source for which the condition holds."""
    chosen = [
        pytest.param(case, id=case.name, marks=marks_of(case)) for case in CASES if condition(case)
    ]
    return pytest.mark.parametrize("case", chosen, indirect=True)


@pytest.fixture
async def case(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Case]:
    case: Case = request.param(tmp_path, request.getfixturevalue)
    await case.start()
    yield case
    await case.stop()


def held() -> Counter[str]:
    """The open files of the process, by kind, and its threads without the loop's own pool."""
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor that listed them
            # The numbers of sockets and pipes differ each time; compare their kinds.
            found[os.readlink(f"/proc/self/fd/{number}").split(":[")[0]] += 1
    # libuv keeps a spare descriptor.
    del found["/dev/null"]
    found.update(t.name for t in threading.enumerate() if not t.name.startswith(_POOLS))
    return found


@those()
async def test_events_are_received_in_order_and_counted(case: Case) -> None:
    reader, output = case.reader(), RecordingOutput()
    async with running(reader, output):
        await until(lambda: reader.state.state == case.up)
        await case.send(range(5))
        await until(lambda: len(case.numbers(output)) == 5)
        await case.send(range(5, 200))
        await until(lambda: len(case.numbers(output)) == 200)
        assert case.numbers(output) == list(range(200))
        state = reader.state
        assert (state.state, state.error, state.lost) == (case.up, "", 0)
        assert state.received == 200
        assert state.rate > 0
        assert all(len(message) <= case.settings.max_body for message in output.messages)
    assert reader.state.state == "stopped"


@those()
@pytest.mark.parametrize("blocked", [False, True], ids=["reading", "waiting for the output"])
async def test_a_cancelled_reader_ends_at_once_and_leaves_nothing_open(
    case: Case, blocked: bool
) -> None:
    for attempt in range(_ATTEMPTS):
        before = held()
        reader, output = case.reader(), RecordingOutput()
        task = asyncio.create_task(reader.run(output))
        await until(lambda: reader.state.state == case.up)  # noqa: B023
        await case.send([2 * attempt])
        await until(lambda: case.numbers(output)[-1:] == [2 * attempt])  # noqa: B023
        if blocked:
            output.open.clear()
            await case.send([2 * attempt + 1])
        began = time.monotonic()
        await stop(task)
        assert time.monotonic() - began < 3.0
        assert reader.state.state == "stopped"
        await case.drop()  # close the peer's side of the connection
        with contextlib.suppress(AssertionError):
            await until(lambda: held() <= before, seconds=10.0)  # noqa: B023
            return
    raise AssertionError(f"left open each time: {held() - before}")


@those(lambda case: not case.why_no_reconnect)
async def test_a_reader_reconnects_after_the_peer_dropped_it(case: Case) -> None:
    reader, output = case.reader(), RecordingOutput()
    async with running(reader, output):
        for round_ in range(3):
            await until(lambda: reader.state.state == case.up)
            await case.send([round_])
            await until(lambda: len(case.numbers(output)) == round_ + 1)  # noqa: B023
            await case.drop()
        await case.send([3])
        await until(lambda: case.numbers(output)[-1:] == [3])
        assert case.numbers(output) == [0, 1, 2, 3]


@those(lambda case: not case.why_no_resume)
async def test_a_reader_resumes_at_its_bookmark_without_loss_or_duplicates(case: Case) -> None:
    first, output = case.reader(), RecordingOutput()
    async with running(first, output):
        await case.send(range(10))
        await until(lambda: len(case.numbers(output)) == 10)
    await case.send(range(10, 20))
    second, after = case.reader(), RecordingOutput(bookmark=output.bookmark)
    async with running(second, after):
        await case.send(range(20, 30))
        await until(lambda: 29 in case.numbers(after))
        assert case.numbers(after) == list(range(10, 30))


@those(lambda case: not case.why_no_resume)
async def test_messages_that_were_not_on_disk_when_the_collector_died_are_read_again(
    case: Case,
) -> None:
    first, output = case.reader(), RecordingOutput()
    async with running(first, output):
        await case.send(range(5))
        await until(lambda: len(case.numbers(output)) == 5 and output.bookmark is not None)
        kept = output.bookmark
        output.disk.clear()
        await case.send(range(5, 10))
        await until(lambda: len(case.numbers(output)) == 10)
    assert output.bookmark == kept
    second, after = case.reader(), RecordingOutput(bookmark=kept)
    async with running(second, after):
        await until(lambda: 9 in case.numbers(after))
        assert case.numbers(after) == list(range(5, 10))
    output.disk.set()


@those(lambda case: bool(case.why_no_resume))
async def test_a_reader_that_cannot_resume_reads_new_messages(case: Case) -> None:
    first, output = case.reader(), RecordingOutput()
    async with running(first, output):
        await until(lambda: first.state.state == case.up)
        await case.send([1])
        await until(lambda: case.numbers(output) == [1])
        assert output.bookmark is None
    second, after = case.reader(), RecordingOutput()
    async with running(second, after):
        await until(lambda: second.state.state == case.up)
        await case.send([2])
        await until(lambda: case.numbers(after) == [2])


@those()
async def test_a_reader_survives_garbage(case: Case) -> None:
    reader, output = case.reader(), RecordingOutput()
    task = asyncio.create_task(reader.run(output))
    await until(lambda: reader.state.state == case.up)
    await case.garbage()
    number = 0

    async def got_through() -> bool:
        # Garbage may have closed the connection, so messages sent right after it may be lost.
        nonlocal number
        if reader.state.state == case.up and not case.numbers(output):
            await case.send([number])
            number += 1
            await asyncio.sleep(0.05)
        return bool(case.numbers(output))

    await until(got_through)
    assert not task.done()
    await stop(task)


@those(lambda case: not case.why_no_stall)
async def test_a_hanging_peer_is_detected(case: Case) -> None:
    case.hasty = True
    reader, output = case.reader(), RecordingOutput()
    async with running(reader, output):
        await until(lambda: reader.state.state == case.up)
        await case.send([1])
        await until(lambda: case.numbers(output) == [1])
        await case.stall()
        await until(lambda: case.noticed(reader))
        await until(lambda: reader.state.state == case.up)
        await case.send([2])
        await until(lambda: case.numbers(output) == [1, 2])


@those(lambda case: not case.why_loss)
async def test_a_flood_waits_while_the_output_is_full_and_then_arrives_in_order(
    case: Case,
) -> None:
    reader, output = case.reader(), RecordingOutput()
    async with running(reader, output):
        await until(lambda: reader.state.state == case.up)
        output.open.clear()
        with most_memory() as peak:
            sending = asyncio.create_task(case.pour(case.flood))
            if not case.why_no_hold:
                await stands_still(lambda: case.poured)
                assert not sending.done()
                assert case.poured < case.flood
            else:
                await sending
        assert peak() < case.most_bytes < case.flood * 900
        assert output.messages == []
        await until(lambda: bool(reader.state.behind) == bool(case.behind_unit))
        assert reader.state.behind_unit == case.behind_unit
        output.open.set()
        await until(lambda: reader.state.received >= case.flood, seconds=60)
        await sending
        assert case.numbers(output) == list(range(case.flood))
        await until(lambda: (reader.state.behind or 0) < 1000)  # a database always writes a little
        # If we are slow for longer than `silence`, the peer must not count as dead.
        assert reader.state.reconnects == 0


@those(lambda case: bool(case.why_loss))
async def test_what_a_flood_loses_is_counted(case: Case) -> None:
    reader, output = case.reader(), RecordingOutput()
    async with running(reader, output):
        await until(lambda: reader.state.state == case.up)
        output.open.clear()
        await case.pour(case.flood)
        assert output.messages == []
        output.open.set()
        await until(lambda: reader.state.received + reader.state.lost == case.flood)
        assert reader.state.lost > 0
        assert len(case.numbers(output)) == reader.state.received
        assert case.numbers(output) == sorted(set(case.numbers(output)))


@contextlib.contextmanager
def most_memory() -> Iterator[Callable[[], int]]:
    """The peak of Python's memory, in bytes above the start."""
    peak = 0
    tracemalloc.start()
    try:
        yield lambda: peak
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def stands_still(measure: Callable[[], int]) -> None:
    """Wait until a number has stopped growing."""
    seen, since = measure(), time.monotonic()
    while not seen or time.monotonic() - since < 0.9:
        await asyncio.sleep(0.02)
        if measure() != seen:
            seen, since = measure(), time.monotonic()
