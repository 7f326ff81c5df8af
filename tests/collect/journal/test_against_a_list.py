"""The journal compared with a list of its promised entries, with crashes and damage anywhere."""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.collect.journal.faulty_disks import LosingDisk, segments
from tests.wait_until import until

from millstream.collect.journal import Journal, JournalSettings
from millstream.collect.journal.record import HEADER, bookmark_piece
from millstream.errors import JournalBroken, JournalFull

SETTINGS = JournalSettings(segment_bytes=4096, max_bytes=48 << 10, retry_seconds=0.01)
SOURCES = ("mqtt", "files")
# What a disk does is made up here anyway.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
_EARLY_SECONDS = 0.002  # seconds that the loop has to tell senders what is not true yet

wanted = st.lists(
    st.tuples(st.integers(0, 2000), st.sampled_from((None, None, *SOURCES))), max_size=8
)
append = st.tuples(st.just("append"), wanted)
settle = st.tuples(st.just("settle"), st.lists(st.integers(0, 40), max_size=12))
read = st.tuples(st.just("read"), st.integers(-1, 40), st.integers(0, 4000))
restart = st.tuples(st.just("restart"))
fail = st.tuples(
    st.just("fail"),
    st.sampled_from(("write", "sync")),
    st.booleans(),  # the file cannot be shortened either
    st.integers(1, 5),
)
rot = st.tuples(st.just("rot"), st.integers(0, 40), st.floats(0, 1, exclude_max=True))
crash = st.tuples(
    st.just("crash"),
    wanted,  # in flight
    st.integers(0, 12),  # operations of the disk before it happens
    st.integers(0, 1 << 30),  # what the disk had done of what it was not told to have done
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), max_size=3),
)


@dataclass(frozen=True)
class Entry:
    sequence: int
    payload: bytes
    bookmark: tuple[str, bytes] | None

    def place_in(self, data: bytes) -> tuple[int, int]:
        """The start and end of its record in a segment."""
        at = data.index(self.payload)
        front = b"" if self.bookmark is None else bookmark_piece(*self.bookmark)
        return at - len(front) - HEADER, at + len(self.payload)


@dataclass(frozen=True)
class Damage:
    """Segments before and after bits were flipped."""

    before: dict[str, bytes]
    after: dict[str, bytes]

    def __bool__(self) -> bool:
        return self.before != self.after

    def of(self, entry: Entry) -> bytes:
        """The entry's damaged record; empty if none of its bits was flipped."""
        for name, data in self.before.items():
            if entry.payload in data:
                begin, end = entry.place_in(data)
                now = self.after[name][begin:end]
                return now if now != data[begin:end] else b""
        return b""


NONE = Damage({}, {})
Appended = list[tuple[Entry, "asyncio.Future[None]"]]


@dataclass
class Model:
    """A promised entry."""

    folder: Path
    journal: Journal
    disk: LosingDisk
    pending: list[Entry] = field(default_factory=list)
    settled: list[Entry] = field(default_factory=list)
    refused: set[bytes] = field(default_factory=set)  # these must never come back
    bookmarks: dict[str, bytes] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    made: int = 0
    is_rotten: bool = False  # somewhere: the next start will say so

    def append_all(self, wanted: list[tuple[int, str | None]]) -> Appended:
        """Append as many of these as there is room for."""
        appended: Appended = []
        for size, source in wanted:
            self.made += 1
            payload = b"<%d>" % self.made + Random(self.made).randbytes(size)
            bookmark = None if source is None else (source, b"%d" % self.made)
            try:
                sequence, durable = self.journal.append(payload, bookmark)
            except JournalFull:
                waiting = sum(len(entry.payload) + 2 * HEADER for entry, _ in appended)
                assert self.journal.stored_bytes + waiting + size > SETTINGS.max_bytes - 1000
                break
            appended.append((Entry(sequence, payload, bookmark), durable))
        return appended

    async def append(self, wanted: list[tuple[int, str | None]]) -> None:
        appended = self.append_all(wanted)
        await asyncio.gather(*(durable for _, durable in appended))
        for entry, _ in appended:
            assert entry.sequence not in self.used
            self.used.add(entry.sequence)
            self.pending.append(entry)
            if entry.bookmark is not None:
                self.bookmarks[entry.bookmark[0]] = entry.bookmark[1]
        assert self.journal.bookmarks == self.bookmarks
        assert sum(map(len, segments(self.folder).values())) <= SETTINGS.max_bytes + 8192

    def settle(self, places: list[int]) -> None:
        for place in places:
            if place < len(self.pending):
                entry = self.pending.pop(place)
                self.journal.settle(entry.sequence)
                self.settled.append(entry)

    async def read(self, place: int, most_bytes: int) -> None:
        after = self.pending[place].sequence if 0 <= place < len(self.pending) else 0
        got = await self.journal.read(after, most_bytes)
        expected = [(e.sequence, e.payload) for e in self.pending if e.sequence > after]
        assert got == expected[: len(got)]
        assert bool(got) == bool(expected)
        assert len(got) <= 1 or sum(len(payload) for _, payload in got) <= most_bytes

    async def fail(self, operation: str, stays_long: bool, count: int) -> None:
        """Make writes fail: senders get an error, and their entries may be on disk or not."""
        if stays_long:
            self.disk.fail("truncate")
        self.disk.fail(operation, once=True)
        appended = self.append_all([(100, None)] * count)
        outcomes = await asyncio.gather(*(f for _, f in appended), return_exceptions=True)
        assert all(isinstance(outcome, JournalBroken) for outcome in outcomes)
        self.refused |= {entry.payload for entry, _ in appended}
        await until(lambda: not self.journal.broken)
        self.disk.heal()

    async def rot(self, place: int, share: float) -> None:
        """Flip a bit while the journal is open: only that entry is set aside."""
        if place >= len(self.pending):
            return
        entry = self.pending.pop(place)
        for name, data in segments(self.folder).items():
            if entry.payload in data:
                begin, end = entry.place_in(data)
                rotten = bytearray(data[begin:end])
                rotten[int(share * len(rotten))] ^= 1
                with (self.folder / name).open("r+b") as file:
                    file.seek(begin)
                    file.write(rotten)
        self.is_rotten = True
        await self.read(-1, 1 << 30)
        assert self.journal.pending_entries == len(self.pending)
        assert bytes(rotten) in [path.read_bytes() for path in self.folder.glob("damaged/*")]

    async def restart(self) -> None:
        await self.journal.close()
        self.journal = await Journal.open(self.folder, SETTINGS, self.disk)
        recovery = self.journal.recovery
        assert self.is_rotten or (recovery.cut_bytes, recovery.damaged) == (0, [])
        await self.compare([], [], NONE)

    async def crash(
        self,
        wanted: list[tuple[int, str | None]],
        operations: int,
        seed: int,
        flips: list[tuple[float, int]],
    ) -> None:
        """Lose power during some operation: what was not synced may be lost."""
        image = self.folder.with_name(self.folder.name + "+")
        promised: list[Entry] = []
        appended: Appended = []

        def strike() -> None:
            time.sleep(_EARLY_SECONDS)
            promised.extend(entry for entry, future in appended if future.done())
            self.disk.lose_power(self.folder, image, Random(seed))

        self.disk.arm(operations, strike)
        appended += self.append_all(wanted)
        await asyncio.gather(*(future for _, future in appended))
        await self.journal.close()
        if not image.exists():  # it had less to do
            strike()
        damage = turn_over(image, flips)
        self.folder, self.disk = image, LosingDisk()
        self.journal = await Journal.open(image, SETTINGS, self.disk)
        await self.compare([entry for entry, _ in appended], promised, damage)

    async def compare(self, in_flight: list[Entry], promised: list[Entry], damage: Damage) -> None:
        """Compare the recovered entries with the promised ones; they are pending from now on."""
        journal = self.journal
        got = await journal.read(0, 1 << 30)
        assert journal.pending_entries == journal.recovery.entries == len(got)
        assert journal.pending_bytes == journal.recovery.bytes
        known = {e.sequence: e for e in (*self.settled, *self.pending, *in_flight)}
        back = [sequence for sequence, _ in got]
        assert back == sorted(set(back))
        for sequence, payload in got:
            assert payload == known[sequence].payload
            assert payload not in self.refused
        kept = [path.read_bytes() for path in self.folder.glob("damaged/*")]
        for entry in (*self.pending, *promised):
            if entry.sequence not in back:
                assert damage.of(entry), "lost, although it was whole"
                assert any(damage.of(entry) in data for data in kept), "lost, and not set aside"
                torn = [path.read_bytes() for path in self.folder.glob("damaged/*.cut")]
                is_cut = any(damage.of(entry) in data for data in torn)
                assert is_cut or journal.damage.find(entry.sequence), "lost, and not counted"
        marks = {
            e.bookmark[0]: e.bookmark[1] for e in in_flight if e.bookmark and e.sequence in back
        }
        if not damage and not self.is_rotten:
            assert journal.bookmarks == self.bookmarks | marks
        self.used |= set(back)
        self.pending = [known[sequence] for sequence in back]
        self.settled = [entry for entry in self.settled if entry.sequence not in back]
        self.bookmarks = dict(journal.bookmarks)

    async def finish(self) -> None:
        """When all is settled, only the current segment is left, and all space is free."""
        for _ in range(2):
            self.settle([0] * len(self.pending))
            assert (self.journal.pending_entries, self.journal.pending_bytes) == (0, 0)
            await until(lambda: len(segments(self.folder)) == 1)
            await until(self._accepts_a_large_one)

    async def _accepts_a_large_one(self) -> bool:
        before = len(self.pending)
        await self.append([(SETTINGS.max_bytes - 8192, None)])
        return len(self.pending) > before


def turn_over(folder: Path, bits: list[tuple[float, int]]) -> Damage:
    """Flip bits anywhere in the segments."""
    before = segments(folder)
    after = {name: bytearray(data) for name, data in before.items()}
    for share, bit in bits:
        at = int(share * sum(map(len, after.values())))
        for data in after.values():
            if at < len(data):
                data[at] ^= 1 << bit
                break
            at -= len(data)
    for name, data in after.items():
        (folder / name).write_bytes(data)
    return Damage(before, {name: bytes(data) for name, data in after.items()})


async def run(steps: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        disk = LosingDisk()
        first = Path(folder) / "journal"
        model = Model(first, await Journal.open(first, SETTINGS, disk), disk)
        try:
            for name, *arguments in [*steps, ("restart",), ("finish",)]:
                answer = getattr(model, name)(*arguments)
                if answer is not None:
                    await answer
        finally:
            await model.journal.close()


@settings(max_examples=150)
@example([("append", [(100, None)]), ("rot", 0, 0.5)])  # the newest entry of all is the damaged one
@given(
    st.lists(st.one_of(append, append, settle, read, restart, fail, rot, crash, crash), max_size=12)
)
def test_every_durable_entry_is_read_back_once_or_set_aside(steps: list[tuple[Any, ...]]) -> None:
    asyncio.run(run(steps))
