"""A failing disk loses no promised entry, and is used again when it works."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from tests.collect.journal.faulty_disks import FailingDisk, segments
from tests.collect.small_disks import small_disk
from tests.wait_until import until

from millstream.collect.journal import Journal, JournalSettings
from millstream.collect.journal.record import HEADER
from millstream.errors import JournalBroken

QUICK = JournalSettings(retry_seconds=0.01)


async def broken_by(journal: Journal, payload: bytes = b"refused") -> str:
    _, durable = journal.append(payload)
    with pytest.raises(JournalBroken) as caught:
        await durable
    return str(caught.value)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (errno.ENOSPC, "no space left on device; free space on that disk, or lower journal.max_"),
        (errno.EROFS, "read-only file system; mount the disk writable again"),
        (errno.EIO, "input/output error; see dmesg; the disk may be failing"),
        (errno.EACCES, "permission denied; let the collector's user write there"),
    ],
)
async def test_an_error_says_what_to_do_and_ends_when_the_disk_works(
    tmp_path: Path, code: int, told: str
) -> None:
    disk = FailingDisk()
    journal = await Journal.open(tmp_path, QUICK, disk)
    await journal.append(b"before")[1]
    disk.fail("write", "create", error=code)
    said = await broken_by(journal)
    assert said.startswith("cannot append to journal segment 0000")
    assert told in said
    with pytest.raises(JournalBroken, match="journal segment"):
        journal.append(b"refused at once")
    assert [payload for _, payload in await journal.read(0, 1000)] == [b"before"]
    disk.heal()
    await until(lambda: not journal.broken)
    assert (await _append(journal, b"after")) == 2  # as if nothing had been tried between
    assert [payload for _, payload in await journal.read(0, 1000)] == [b"before", b"after"]
    await journal.close()


async def test_a_failed_sync_is_never_tried_again_on_the_same_file(tmp_path: Path) -> None:
    disk = FailingDisk()
    journal = await Journal.open(tmp_path, QUICK, disk)
    await journal.append(b"before")[1]
    ((first, data),) = segments(tmp_path).items()
    disk.fail("sync", once=True)
    assert "input/output error" in await broken_by(journal)
    await until(lambda: not journal.broken)
    await journal.append(b"after")[1]
    assert len(segments(tmp_path)) == 2
    assert segments(tmp_path)[first] == data, "what was not promised is not kept"
    await journal.close()
    again = await Journal.open(tmp_path, QUICK)
    assert [payload for _, payload in await again.read(0, 1000)] == [b"before", b"after"]
    await again.close()


async def test_refused_entries_stay_away_although_the_next_segment_header_is_damaged(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    journal = await Journal.open(tmp_path, QUICK, disk)
    await journal.append(b"before")[1]
    disk.fail("truncate")
    disk.fail("sync", once=True)
    await broken_by(journal)
    await until(lambda: not journal.broken)
    await journal.append(b"after")[1]
    await journal.close()
    name, data = list(segments(tmp_path).items())[-1]
    end = data.index(b"after") - HEADER
    await asyncio.to_thread((tmp_path / name).write_bytes, bytes(end) + data[end:])
    again = await Journal.open(tmp_path, QUICK)
    assert [payload for _, payload in await again.read(0, 1000)] == [b"before", b"after"]
    assert len(again.recovery.damaged) == 2
    await again.close()


async def test_a_journal_opens_on_a_read_only_disk_and_returns_its_entries(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    journal = await Journal.open(tmp_path, QUICK)
    await journal.append(b"pending")[1]
    await journal.close()
    disk.fail("create", error=errno.ENOSPC)
    again = await Journal.open(tmp_path, QUICK, disk)
    assert "no space left on device" in again.broken
    assert await again.read(0, 100) == [(1, b"pending")]
    again.settle(1)
    disk.heal()
    await until(lambda: not again.broken)
    assert await _append(again, b"next") == 2
    await again.close()


async def test_a_disk_filled_by_one_segment_has_room_again_when_kafka_has_all_entries(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        journal = await Journal.open(disk.folder / "journal", QUICK)
        last = 0
        while not journal.broken:
            try:
                last = await _append(journal, bytes(10_000))
            except JournalBroken:
                # The spare room is taken for a new segment, which is full at once.
                await asyncio.sleep(0.05)
        assert "no space left" in journal.broken
        assert last > 80
        for sequence in range(1, last + 1):
            journal.settle(sequence)
        await until(lambda: not journal.broken)
        for _ in range(50):
            last = await _append(journal, bytes(10_000))
            journal.settle(last)
        await journal.close()


async def test_a_journal_opens_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        journal = await Journal.open(disk.folder / "journal", QUICK)
        await journal.append(b"pending", bookmark=("mqtt", b"7"))[1]
        await journal.close()
        disk.fill()
        again = await Journal.open(disk.folder / "journal", QUICK)
        assert await again.read(0, 100) == [(1, b"pending")]
        assert again.bookmarks == {"mqtt": b"7"}
        again.settle(1)
        disk.make_room()
        await until(lambda: not again.broken)
        assert await _append(again, bytes(100_000)) == 2
        await again.close()


async def _append(journal: Journal, payload: bytes) -> int:
    sequence, durable = journal.append(payload)
    await durable
    return sequence
