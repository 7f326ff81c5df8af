"""A small journal, cut off at every byte, and with a flipped bit in every byte."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.collect.journal.faulty_disks import segments

from millstream.collect.journal import DamagedPiece, DamageStore, Journal, JournalSettings
from millstream.collect.journal.disk import Disk
from millstream.collect.journal.record import HEADER
from millstream.collect.journal.recovery import CleanClose, RecoveredState, recover

STILL_OPEN = CleanClose()
PAYLOADS = [b"the first", b"", b"the third, after an empty one", b"the last"]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The only segment of a journal that holds the payloads."""
    asyncio.run(write(tmp_path / "written"))
    (segment,) = (tmp_path / "written").glob("*.segment")
    return segment


async def write(folder: Path) -> None:
    journal = await Journal.open(folder, JournalSettings())
    await asyncio.gather(*(journal.append(payload)[1] for payload in PAYLOADS))
    await journal.close()


def ends(data: bytes) -> list[int]:
    """The offset at which each entry ends."""
    end = len(data)
    found = []
    for payload in reversed(PAYLOADS):
        found.append(end)
        end -= HEADER + len(payload)
    return found[::-1]


def variants(written: Path) -> Iterator[tuple[int, bytes]]:
    """The segment with one flipped bit, for every byte, and its offset."""
    data = written.read_bytes()
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        yield at, bytes(changed)


def recovered(
    name: str, data: bytes, folder: Path, closed: CleanClose = STILL_OPEN
) -> tuple[RecoveredState, list[bytes]]:
    """The recovered state of a folder with only this segment, and its entries."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(data)
    found = recover(folder, Disk(), closed)
    (segment,) = found.segments
    content = path.read_bytes()
    return found, [
        content[offset + HEADER : offset + HEADER + length]
        for offset, length, settled in zip(
            segment.offsets, segment.lengths, segment.settled, strict=True
        )
        if not settled
    ]


def test_a_segment_cut_off_anywhere_keeps_every_complete_entry(
    written: Path, tmp_path: Path
) -> None:
    data = written.read_bytes()
    for size in range(len(data) + 1):
        found, entries = recovered(written.name, data[:size], tmp_path / "cut")
        whole = sum(end <= size for end in ends(data))
        assert entries == PAYLOADS[:whole]
        assert found.report.damaged == []
        assert DamageStore(tmp_path / "cut" / "damaged").lost() == [], "nobody was answered for it"
        assert found.segments[0].size == (tmp_path / "cut" / written.name).stat().st_size
        assert found.report.cut_bytes == size - found.segments[0].size


async def test_one_of_the_two_segment_headers_is_enough(tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path, JournalSettings())
    sequence, durable = journal.append(b"settled", bookmark=("mqtt", b"7"))
    await durable
    journal.settle(sequence)
    await journal.close()
    await (await Journal.open(tmp_path, JournalSettings())).close()  # the first segment is gone
    ((name, data),) = segments(tmp_path).items()
    half = data.index(data[:4], 4)
    for begin in (0, half):
        damaged = data[:begin] + bytes(half) + data[begin + half :]
        await asyncio.to_thread((tmp_path / name).write_bytes, damaged)
        found = await asyncio.to_thread(recover, tmp_path, Disk())
        assert (found.bookmarks, found.settled) == ({"mqtt": b"7"}, sequence)


def test_a_flipped_bit_anywhere_loses_only_its_own_record(written: Path, tmp_path: Path) -> None:
    data = written.read_bytes()
    begins = [
        end - HEADER - len(payload) for end, payload in zip(ends(data), PAYLOADS, strict=True)
    ]
    for at, changed in variants(written):
        found, entries = recovered(written.name, changed, tmp_path / "turned")
        assert found.last >= len(PAYLOADS), "a number that Kafka may know is given out again"
        hit = sum(begin <= at for begin in begins) - 1  # -1: what the segment begins with
        assert entries == [payload for n, payload in enumerate(PAYLOADS) if n != hit]
        kept = {path.read_bytes() for path in (tmp_path / "turned" / "damaged").iterdir()}
        if hit >= 0:
            assert changed[begins[hit] : ends(data)[hit]] in kept
        assert (
            found.report.cut_bytes + sum(path.stat().st_size for path in found.report.damaged) > 0
        )
        lost = DamageStore(tmp_path / "turned" / "damaged").lost()
        if hit < len(PAYLOADS) - 1:  # the length of the last one may look as if it had been torn
            assert [(each.first, each.entries) for each in lost] == [(hit + 1, 1)] * (hit >= 0)
        for path in (tmp_path / "turned" / "damaged").iterdir():
            path.unlink()


def test_damage_after_a_clean_close_is_a_loss_and_stays_recorded(
    written: Path, tmp_path: Path
) -> None:
    data, folder = written.read_bytes(), tmp_path / "closed"
    begins = [
        end - HEADER - len(payload) for end, payload in zip(ends(data), PAYLOADS, strict=True)
    ]
    closed = CleanClose(1, len(data), len(PAYLOADS))
    store = DamageStore(folder / "damaged")
    for at, changed in variants(written):
        recovered(written.name, changed, folder, closed)
        hit = sum(begin <= at for begin in begins) - 1
        expected = [(hit + 1, 1)] * (hit >= 0)
        assert [(each.first, each.entries) for each in store.lost()] == expected
        shutil.rmtree(store.folder)
    for size in range(begins[0], len(data)):
        recovered(written.name, data[:size], folder, closed)
        whole = sum(end <= size for end in ends(data))
        assert sum(each.entries for each in store.lost()) == len(PAYLOADS) - whole
        recovered(written.name, data[:size], folder, closed)
        assert sum(each.entries for each in store.lost()) == len(PAYLOADS) - whole
        shutil.rmtree(store.folder)


async def test_an_entry_damaged_while_it_waits_is_reported_once_and_stays_lost(
    tmp_path: Path,
) -> None:
    journal = await Journal.open(tmp_path, JournalSettings())
    told: list[DamagedPiece] = []

    async def on_lost(damaged: list[DamagedPiece]) -> None:
        told.extend(damaged)

    await asyncio.gather(*(journal.append(payload)[1] for payload in PAYLOADS))
    ((name, data),) = segments(tmp_path).items()
    changed = data.replace(b"the third", b"the_third")
    await asyncio.to_thread((tmp_path / name).write_bytes, changed)
    entries = await journal.read(0, 1 << 20, on_lost)
    assert [sequence for sequence, _ in entries] == [1, 2, 4]
    assert [(one.first, one.entries) for one in told] == [(3, 1)]
    await journal.close()
    again = await Journal.open(tmp_path, JournalSettings())
    (one,) = again.damage.lost()
    assert (one.first, again.recovery.lost) == (3, 0), "it was known before"
    assert b"the_third" in again.damage.data(one)
    assert again.damage.acknowledge([one.name]) == 1
    await again.close()
    last = await Journal.open(tmp_path, JournalSettings())
    counts = last.damage.counts()
    assert counts is not None
    assert (counts.entries, counts.acknowledged) == (0, 1)
    await last.close()


def test_each_start_reports_how_much_was_ever_set_aside_and_deletes_none_of_it(
    written: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, folder = written.read_bytes(), tmp_path / "torn"
    recovered(written.name, data, folder)
    assert "set aside" not in caplog.text
    recovered(written.name, data[:-1], folder)
    (kept,) = (folder / "damaged").iterdir()
    size = kept.stat().st_size
    caplog.clear()
    recovered(written.name, data, folder)
    assert f"1 files of {size} bytes" in caplog.text
    assert "files named .cut can be deleted" in caplog.text
    assert kept.stat().st_size == size


def test_only_the_owner_can_read_the_journal_and_the_damaged_pieces(
    written: Path, tmp_path: Path
) -> None:
    torn = tmp_path / "torn"
    recovered(written.name, written.read_bytes()[:-1], torn)
    (kept,) = (torn / "damaged").iterdir()
    files = (written, written.parent / "identity", kept)
    assert [oct(path.stat().st_mode & 0o777) for path in files] == ["0o600"] * 3
    folders = (written.parent, kept.parent)
    assert [oct(path.stat().st_mode & 0o777) for path in folders] == ["0o700"] * 2
