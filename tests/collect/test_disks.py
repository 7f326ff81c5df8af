"""Full or read-only disks, of the collector and of Kafka: no acknowledged event is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.collect.counting_senders import Sender
from tests.collect.crash_runs import CollectorRun
from tests.collect.forked_collectors import CollectorForker
from tests.collect.small_disks import SmallDisk, small_disk

from millstream.cli.group import millstream
from millstream.errors import MachineError
from millstream.log.broker import Broker
from millstream.log.settings import LogSettings

JOURNAL = {"segment_bytes": 128 << 10, "max_bytes": 3 << 20, "retry_seconds": 0.1}


@contextlib.asynccontextmanager
async def running(app: str, log: LogSettings, home: Path, size: int) -> AsyncIterator[CollectorRun]:
    """Run a collector under load; at the end, all acknowledged events must be in Kafka."""
    senders = [
        Sender(f"{ack}{batch}", ack, batch, size) for ack in ("log", "local") for batch in (1, 7)
    ]
    stop = asyncio.Event()
    with CollectorForker() as forker:
        run = CollectorRun(forker, app, log, home, senders, journal=JOURNAL)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run.send(stop))
            await run.more(200)
            yield run
            await run.more(200)
            stop.set()
        await run.at_rest()
        print(run.senders)
        assert await asyncio.to_thread(run.violations) == []


async def refused(run: CollectorRun, reason: str) -> None:
    """Wait until every sender gets a Retry-After, and the collector says why."""
    for sender in run.senders.senders:
        sender.waits.clear()

    async def is_refusing() -> bool:
        status, content = await run.health()
        is_refused = status == 503 and reason in content["detail"]
        return is_refused and all(sender.waits for sender in run.senders.senders)

    await run.until(is_refusing, f"nobody says {reason!r}: {await run.health()}")
    assert all(seconds >= 1 for sender in run.senders.senders for seconds in sender.waits)


def status(home: Path) -> str:
    answer = CliRunner().invoke(millstream, ["status", "--home", str(home)], standalone_mode=False)
    return " ".join(answer.output.split())


async def fill(disk: SmallDisk, run: CollectorRun) -> None:
    """Wait until the collector has no room at all; events that Kafka gets free some again."""

    async def is_stuck() -> bool:
        await asyncio.to_thread(disk.fill)
        status, content = await run.health()
        return status == 503 and "no space left" in content["detail"]

    await run.until(is_stuck, "the disk does not get full")


async def until_status_says(disk: SmallDisk, run: CollectorRun, home: Path, words: str) -> None:
    """Wait until `millstream status` says so; freed space is filled again meanwhile."""

    async def says_so() -> bool:
        await asyncio.to_thread(disk.fill)
        return words in await asyncio.to_thread(status, home)

    await run.until(says_so, f"`millstream status` does not say {words!r}")


@pytest.mark.timeout(120)
async def test_a_full_disk_refuses_senders_until_there_is_room_and_loses_nothing(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 8 << 20) as disk:
        home = disk.folder / "home"
        async with running(app_name, log_settings, home, 200) as run:
            await fill(disk, run)
            await refused(run, "no space left on device")
            await until_status_says(
                disk, run, home, "collect accepts nothing: the journal accepts nothing: cannot"
            )
            run.kill()  # on a full disk, one more must be able to start
            await refused(run, "no space left on device")
            await asyncio.to_thread(disk.make_room)


@pytest.mark.timeout(120)
async def test_a_disk_that_becomes_read_only_refuses_senders_and_loses_nothing(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 8 << 20) as disk:
        async with running(app_name, log_settings, disk.folder / "home", 200) as run:
            with disk.read_only(disk.folder / "home" / "journal" / "0"):
                await refused(run, "read-only file system")


@pytest.mark.timeout(120)
@pytest.mark.kafka
async def test_when_kafkas_disk_is_full_the_journal_fills_and_loses_nothing(
    app_name: str, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "kafka-home" / "kafka" / "data", 6 << 20) as disk:
        broker = Broker(tmp_path / "kafka-home", memory="256m")
        with broker:
            log = LogSettings(bootstrap=broker.bootstrap)
            async with running(app_name, log, tmp_path / "home", 5000) as run:
                with pytest.raises(MachineError, match=r"Kafka in .* ended"):
                    await asyncio.to_thread(broker.wait)
                await refused(run, "the journal is full")
                disk.grow(256 << 20)
                broker.stop()
                await asyncio.to_thread(broker.start)
