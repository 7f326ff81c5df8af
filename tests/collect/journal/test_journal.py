"""The journal returns every appended entry until it is settled."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tests.wait_until import until

from millstream.collect.journal import Journal, JournalSettings
from millstream.errors import HomeInUse, JournalBroken, JournalFull, JournalSmall

SMALL = JournalSettings(segment_bytes=4096, max_bytes=64 * 1024)


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.segment"))


async def fill(journal: Journal, count: int, size: int = 100) -> list[int]:
    taken = [journal.append(b"%d " % n + bytes(size)) for n in range(count)]
    await asyncio.gather(*(durable for _, durable in taken))
    return [sequence for sequence, _ in taken]


async def test_entries_get_increasing_sequence_numbers_and_are_read_in_order(
    tmp_path: Path,
) -> None:
    journal = await Journal.open(tmp_path, JournalSettings())
    sequences = await fill(journal, 100)
    assert sequences == list(range(1, 101))
    entries = await journal.read(after=40, most_bytes=1 << 20)
    assert [sequence for sequence, _ in entries] == sequences[40:]
    assert entries[0][1].startswith(b"40 ")
    assert (journal.last_durable, journal.pending_entries) == (100, 100)
    assert journal.pending_bytes == sum(
        len(payload) for _, payload in await journal.read(0, 1 << 20)
    )
    await journal.close()


async def test_reading_is_bounded_by_bytes_but_returns_at_least_one_entry(tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path, JournalSettings())
    await fill(journal, 10, size=1000)
    assert [sequence for sequence, _ in await journal.read(0, 1)] == [1]
    assert [sequence for sequence, _ in await journal.read(3, 3100)] == [4, 5, 6]
    assert await journal.read(10, 1 << 20) == []
    await journal.close()


async def test_unsettled_entries_are_pending_after_a_restart(tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path, JournalSettings())
    await fill(journal, 10)
    for sequence in (1, 2, 3, 7):
        journal.settle(sequence)
    before = await journal.read(0, 1 << 20)
    assert [sequence for sequence, _ in before] == [4, 5, 6, 8, 9, 10]
    await journal.close()
    again = await Journal.open(tmp_path, JournalSettings())
    # Only the low-water mark is kept: of 7 it is asked again whether Kafka has it.
    assert [sequence for sequence, _ in await again.read(0, 1 << 20)] == [4, 5, 6, 7, 8, 9, 10]
    assert (again.recovery.entries, again.recovery.cut_bytes, again.recovery.damaged) == (7, 0, [])
    sequence, durable = again.append(b"next")
    await durable
    assert sequence == 11
    await again.close()


async def test_settling_is_idempotent_and_settling_an_entry_that_is_not_durable_is_an_error(
    tmp_path: Path,
) -> None:
    journal = await Journal.open(tmp_path, JournalSettings())
    await fill(journal, 2)
    journal.settle(1)
    journal.settle(1)
    assert journal.pending_entries == 1
    with pytest.raises(ValueError, match="entry 3 is not durable yet"):
        journal.settle(3)
    await journal.close()


async def test_a_segment_is_deleted_when_all_of_its_entries_are_settled(tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path, SMALL)
    for _ in range(100):
        await fill(journal, 1, size=200)
    files = segments(tmp_path)
    assert len(files) > 4
    for sequence in range(2, 101):
        journal.settle(sequence)
    # The first holds entry 1, which is pending; those between go all the same.
    await until(lambda: segments(tmp_path) == [files[0], files[-1]])
    journal.settle(1)
    await until(lambda: segments(tmp_path) == [files[-1]])
    assert (journal.pending_entries, journal.pending_bytes) == (0, 0)
    await until(lambda: journal.stored_bytes == files[-1].stat().st_size)
    await journal.close()


async def test_a_full_journal_refuses_entries_and_names_the_numbers(tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path, SMALL)
    for _ in range(60):
        await fill(journal, 1, size=1000)
    with pytest.raises(JournalFull, match=r"of 65,536 bytes .* 60 entries .*journal\.max_bytes"):
        journal.append(bytes(10_000))
    assert journal.last_durable == 60
    for sequence in range(1, 61):
        journal.settle(sequence)
    await until(lambda: journal.stored_bytes < 20_000)
    sequence, durable = journal.append(bytes(10_000))
    await durable
    assert sequence == 61
    await journal.close()


async def test_an_entry_larger_than_the_whole_journal_does_not_wait(tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path, SMALL)
    with pytest.raises(JournalSmall, match=r"cannot hold 70,0\d\d bytes: it may have 65,536"):
        journal.append(bytes(70_000))
    assert not journal.is_full
    await fill(journal, 1, size=1000)
    await journal.close()


async def test_entries_that_wait_for_the_disk_are_bounded_too(tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path, JournalSettings(max_waiting_bytes=1000))
    taken = [journal.append(bytes(400))[1], journal.append(bytes(400))[1]]
    with pytest.raises(JournalFull, match=r"wait for it; .*journal\.max_waiting_bytes"):
        journal.append(bytes(400))
    await asyncio.gather(*taken)
    await journal.append(bytes(4000))[1]  # alone it may be larger
    await journal.close()


async def test_bookmarks_are_durable_with_their_entry_and_survive_its_segment(
    tmp_path: Path,
) -> None:
    journal = await Journal.open(tmp_path, SMALL)
    _, first = journal.append(b"a", bookmark=("mqtt", b"1"))
    _, second = journal.append(b"b", bookmark=("files", b"\x00\xff"))
    _, third = journal.append(b"c", bookmark=("mqtt", b"2"))
    assert journal.bookmarks == {}
    await asyncio.gather(first, second, third)
    assert journal.bookmarks == {"mqtt": b"2", "files": b"\x00\xff"}
    assert await journal.read(0, 1 << 20) == [(1, b"a"), (2, b"b"), (3, b"c")]
    oldest = segments(tmp_path)[0]
    for _ in range(30):
        await fill(journal, 1, size=200)
    for sequence in range(1, journal.last_durable + 1):
        journal.settle(sequence)
    await until(lambda: not oldest.exists())
    await journal.close()
    again = await Journal.open(tmp_path, SMALL)
    assert again.bookmarks == {"mqtt": b"2", "files": b"\x00\xff"}
    await again.close()


async def test_the_identity_stays_and_starts_are_counted(tmp_path: Path) -> None:
    first = await Journal.open(tmp_path / "a", JournalSettings())
    await first.close()
    second = await Journal.open(tmp_path / "a", JournalSettings())
    await second.close()
    other = await Journal.open(tmp_path / "b", JournalSettings())
    await other.close()
    assert (first.start, second.start) == (1, 2)
    assert first.identity == second.identity != other.identity


async def test_sequence_numbers_are_not_reused_when_all_segments_are_deleted(
    tmp_path: Path,
) -> None:
    journal = await Journal.open(tmp_path, SMALL)
    (*_, last) = await fill(journal, 50)
    await journal.close()
    for path in segments(tmp_path):
        path.unlink()
    again = await Journal.open(tmp_path, SMALL)
    (sequence,) = await fill(again, 1)
    assert sequence > last
    assert (again.identity, again.pending_entries) == (journal.identity, 1)
    await again.close()


async def test_sequence_numbers_are_not_reused_when_the_newest_segment_is_deleted(
    tmp_path: Path,
) -> None:
    journal = await Journal.open(tmp_path, SMALL)
    for _ in range(30):
        (last,) = await fill(journal, 1, size=200)
    await journal.close()
    *older, newest = segments(tmp_path)
    newest.unlink()
    again = await Journal.open(tmp_path, SMALL)
    (sequence,) = await fill(again, 1)
    assert sequence > last
    assert segments(tmp_path)[: len(older)] == older
    await again.close()


async def test_a_lost_identity_is_found_again_in_the_segments(tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path, JournalSettings())
    await journal.close()
    (tmp_path / "identity").unlink()
    again = await Journal.open(tmp_path, JournalSettings())
    assert (again.identity, again.start) == (journal.identity, 2)
    await again.close()


async def test_a_second_process_is_refused_and_the_error_names_the_first(tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path, JournalSettings())
    with pytest.raises(HomeInUse, match=f"process {os.getpid()} has it open"):
        await Journal.open(tmp_path, JournalSettings())
    await journal.close()
    await (await Journal.open(tmp_path, JournalSettings())).close()


async def test_closing_writes_waiting_entries_and_then_refuses_new_ones(tmp_path: Path) -> None:
    journal = await Journal.open(tmp_path, JournalSettings())
    _, durable = journal.append(b"last")
    await journal.close()
    await durable
    with pytest.raises(JournalBroken, match="it is closed"):
        journal.append(b"too late")
    await journal.close()
    again = await Journal.open(tmp_path, JournalSettings())
    assert await again.read(0, 100) == [(1, b"last")]
    await again.close()
