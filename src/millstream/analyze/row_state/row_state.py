"""The life of a view's rows: provisional, final, corrected, gone. Knows no Kafka.

Spark writes rows; we write their states and ends into the same topic, with nothing to order the
two. So a newer row can slip in between our reading of the old one and what we write of it:

- A tombstone says which row it ends; when we read it back after a newer row, we write that row
  again, told apart by `_returned`.
- A state is written with its row's own number. When we read it back after a newer row, everyone
  ignored it but the log's compaction, for which it is the newest: so we write the newer row again,
  as corrected, because its older number was called final in the log.

After a crash Spark repeats rows. Servers ignore them, but compaction would keep them and drop what
we wrote before: so the state is written again after the repeat.

Compaction may also have dropped a final row whose correction we did not get to write before a
crash. So before rows are made final we write down, elsewhere, until when and from which offset on
(a claim): a row without state in a window that was claimed is a correction.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from millstream.analyze.plan import ViewPlan
from millstream.log.consumer import Partition
from millstream.log.record import Record
from millstream.values.clock import to_ms
from millstream.values.hidden_columns import RECEIVED
from millstream.values.row_version import (
    CORRECTED,
    FINAL,
    PROVISIONAL,
    STATES,
    RowVersion,
    is_known,
    version_after,
    version_of,
)

ENDS = "ends"  # header of a tombstone: the offset of the row that it ends
ANEW = "anew"  # header of a row that corrects one of an earlier edition of its view

_OURS = re.compile(rb'(?:,?"_state":"[a-z]+")?(?:,?"_returned":\d+)?}$')  # as `written` puts it
_UNHURRIED_MS = 60_000  # clocks of machines differ; nothing is forgotten sooner than this


class Place(NamedTuple):
    """A row's key in one partition of a view's topic."""

    topic: str
    partition: int
    key: bytes


class Claim(NamedTuple):
    """Windows that ended by `until` are closed, with all that comes from `offset` on."""

    offset: int
    until: int  # milliseconds since the epoch


class End(NamedTuple):
    """A tombstone to write."""

    place: Place
    offset: int  # of the row that it ends
    last: bytes | None = None  # the row as it is to be written before: what ends is final


class Return(NamedTuple):
    """A row to write again, because the tombstone of an older one overtook it."""

    place: Place
    value: bytes
    timestamp: int


class Statement(NamedTuple):
    """A row to write again with its state."""

    place: Place
    offset: int  # of the row that it speaks of
    value: bytes


@dataclass(slots=True)
class _Row:
    mark: RowVersion
    offset: int  # of its newest record
    since: int  # of its first one, without a state
    timestamp: int
    value: bytes | None  # while it may have to be written again
    due: int | None  # when it ends; milliseconds since the epoch
    end: int | None  # of its window
    written: int  # when Spark wrote it last, by the record's timestamp
    is_stated: bool = True  # the newest record of its key tells its state
    ending: int = -1  # the offset that a tombstone on the way ends
    stating: int = -1  # the offset that a statement on the way speaks of
    is_gone: bool = False
    is_open: bool = False  # waits for the end of its window

    @property
    def stage(self) -> int:
        return int(self.mark[-2])


class _Said(NamedTuple):
    """What a record tells about its row."""

    mark: RowVersion
    end: int | None  # of its window


class RowStates:
    """Records in; states and tombstones out."""

    def __init__(self, views: Iterable[ViewPlan]) -> None:
        self._views = {view.written: view for view in views}
        self._stateful = {view.written for view in stateful(self._views.values())}
        self._rows: dict[Place, _Row] = {}
        self._queue: list[tuple[int, Place]] = []  # may be too early for a row, never too late
        self._queued: set[Place] = set()
        self._overtaken: dict[Place, Return] = {}
        # Per topic by window's end: rows that are provisional, and those that are to be forgotten;
        # by when Spark wrote them: those that are gone.
        self._open: dict[str, list[tuple[int, Place]]] = {topic: [] for topic in self._views}
        self._aging: dict[str, list[tuple[int, Place]]] = {topic: [] for topic in self._views}
        self._ended: dict[str, list[tuple[int, Place]]] = {topic: [] for topic in self._views}
        self._unstated: set[Place] = set()
        self._next: dict[Partition, int] = {}
        self._forgotten: dict[str, int] = {}  # topic → the latest end of a window not held here
        self.claimed: dict[Partition, Claim] = {}
        self.received: dict[str, str] = {}  # topic → `_received_at` of the newest row; RFC 3339

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def held_bytes(self) -> int:
        """How much of the rows themselves is in memory."""
        return sum(len(row.value) for row in self._rows.values() if row.value is not None)

    def apply(self, record: Record) -> None:
        """Take in a record, in the order of its partition."""
        self._next[record.topic, record.partition] = record.offset + 1
        if record.key is None:
            return
        place = Place(record.topic, record.partition, record.key)
        held = self._rows.get(place)
        if record.value is None:
            if held is not None:
                self._end(place, held, record)
            return
        said = self._read(record)
        if said is None:
            return
        mark = self._first(record, said) if held is None else version_after(said.mark, held.mark)
        if mark is not None:
            self._accept(place, held, record, said, mark)
        elif held is not None:
            self._repeated(place, held, record, said)

    def ends(self, now: int) -> list[End]:
        """The tombstones that are due; each is given out once, unless `failed` takes it back."""
        due, again = [], []
        while self._queue and self._queue[0][0] <= now:
            _, place = heapq.heappop(self._queue)
            self._queued.discard(place)
            row = self._rows.get(place)
            if row is None or row.due is None or (row.is_gone and row.ending == row.offset):
                continue
            if row.due <= now and row.ending != row.offset:
                row.ending = row.offset
                due.append(End(place, row.offset, self._last(place, row)))
            again.append((max(row.due, now + 1), place))
        for later in again:
            self._enqueue(*later)
        return due

    def _last(self, place: Place, row: _Row) -> bytes | None:
        """The row with the state that it was never given, if it is to have one.

        A view that was down for longer than it keeps its rows comes to their end at once, as does
        a correction by an event that is later than that; and whoever enters what is final must hear
        of them nevertheless.
        """
        is_told = row.stage != PROVISIONAL and row.is_stated
        if is_told or row.value is None or place.topic not in self._stateful:
            return None
        return written(row.value, max(row.stage, FINAL), int(row.mark[-1]))

    def returns(self) -> list[Return]:
        """The rows to write again; each is given out once."""
        returned, self._overtaken = list(self._overtaken.values()), {}
        return returned

    def claims(self, watermarks: Mapping[str, int]) -> dict[Partition, Claim]:
        """What must be written down before `statements` of these watermarks may be."""
        due = {
            topic
            for topic, queue in self._open.items()
            if queue and queue[0][0] <= watermarks.get(topic, 0)
        }
        if not due:
            return {}
        offsets = {at: offset for at, offset in self._next.items() if at[0] in due}
        for place in self._unstated:  # what is not stated yet is still to be found by a successor
            at = (place.topic, place.partition)
            if at in offsets:
                offsets[at] = min(offsets[at], self._rows[place].offset)
        return {
            at: Claim(offset, watermarks[at[0]])
            for at, offset in offsets.items()
            if watermarks[at[0]] > self.claimed.get(at, Claim(0, 0)).until
        }

    def statements(self, watermarks: Mapping[str, int]) -> list[Statement]:
        """The states to write; each is given out once, unless `failed` takes it back.

        Windows end at the watermark of their view's topic, in milliseconds since the epoch, once
        their partitions' claims are in `claimed`.
        """
        found = []
        for topic, queue in self._open.items():
            later = []
            while queue and queue[0][0] <= watermarks.get(topic, 0):
                end, place = heapq.heappop(queue)
                row = self._rows.get(place)
                if row is None:
                    continue
                row.is_open = False
                if row.stage != PROVISIONAL or row.is_gone or row.value is None:
                    continue
                if row.ending == row.offset:
                    continue
                claim = self.claimed.get((place.topic, place.partition))
                if claim is None or claim.until < end:
                    later.append((end, place))
                elif row.stating != row.offset:
                    row.stating = row.offset
                    found.append(Statement(place, row.offset, written(row.value, FINAL)))
            for _, place in later:
                self._open_again(place, self._rows[place])
        for place in self._unstated:
            row = self._rows[place]
            if row.value is not None and row.offset not in (row.stating, row.ending):
                row.stating = row.offset
                returned = int(row.mark[-1])
                value = written(row.value, row.stage, returned)
                found.append(Statement(place, row.offset, value))
        return found

    def failed(self, one: End | Statement) -> None:
        """What did not get into the log is due again."""
        row = self._rows.get(one.place)
        if row is None:
            return
        if isinstance(one, End):
            if row.ending == one.offset:
                row.ending = -1
        elif row.stating == one.offset:
            row.stating = -1
            self._open_again(one.place, row)

    def is_closed(self, topic: str, until: int) -> bool:
        """Whether the log says of each row whose window ended by then what it is."""
        return all(
            row.is_gone or row.end is None or row.end > until or (row.stage and row.is_stated)
            for place, row in self._rows.items()
            if place.topic == topic
        )

    def forget(self, watermarks: Mapping[str, int], committed: Mapping[str, int]) -> None:
        """Let go of rows that cannot change any more.

        `committed`, by topic: before when Spark has committed all that it wrote, in milliseconds
        since the epoch. What it wrote after that a crash may bring again.
        """
        for topic, gone in self._ended.items():
            while gone and gone[0][0] < committed.get(topic, 0) - _UNHURRIED_MS:
                _, place = heapq.heappop(gone)
                row = self._rows.get(place)
                if row is not None and row.is_gone and row.offset == row.ending:
                    self._let_go(place, row)
        for topic, queue in self._aging.items():
            spec, later = self._views[topic].window_spec, []
            lateness = _UNHURRIED_MS + (spec.lateness_ms if spec is not None else 0)
            while queue and queue[0][0] + lateness <= watermarks.get(topic, 0):
                end, place = heapq.heappop(queue)
                row = self._rows.get(place)
                if row is None or not row.is_stated or row.stage == PROVISIONAL:
                    continue  # who changes it puts it back here
                if row.written >= committed.get(topic, 0) - _UNHURRIED_MS:
                    later.append((end, place))
                else:
                    self._let_go(place, row)
            for each in later:
                heapq.heappush(queue, each)

    def _let_go(self, place: Place, row: _Row) -> None:
        del self._rows[place]
        if row.end is not None:
            self._forgotten[place.topic] = max(row.end, self._forgotten.get(place.topic, 0))

    def _read(self, record: Record) -> _Said | None:
        assert record.value is not None
        try:
            row = msgspec.json.decode(record.value)
        except ValueError:
            return None
        if not isinstance(row, dict):
            return None
        received, topic = row.get(RECEIVED), record.topic
        if isinstance(received, str) and received > self.received.get(topic, ""):
            self.received[topic] = received
        return _Said(version_of(row), _window_end(row, self._views[topic].window))

    def _first(self, record: Record, said: _Said) -> RowVersion:
        """What a row counts as of which nothing is known: that it was not there may be final.

        Not where rows come once, when they are final: sessions that end later come later.
        """
        comes_once = self._views[record.topic].output_mode == "append"
        if said.mark[-2] != PROVISIONAL or said.end is None or comes_once:
            return said.mark
        claim = self.claimed.get((record.topic, record.partition), Claim(0, 0))
        is_claimed = record.offset >= claim.offset and said.end <= claim.until
        if is_claimed or said.end <= self._forgotten.get(record.topic, 0):
            return (*said.mark[:-2], CORRECTED, said.mark[-1])
        return said.mark

    def _accept(
        self, place: Place, held: _Row | None, record: Record, said: _Said, mark: RowVersion
    ) -> None:
        view = self._views[place.topic]
        if held is not None and held.stating >= 0 and not _is_same(said, held):
            # Its older number is called final in the log, or will be before anything of ours is.
            mark = (*mark[:-2], CORRECTED, mark[-1])
        from_ = record.timestamp if said.end is None else said.end
        is_spark = said.mark[-2] == PROVISIONAL and not said.mark[-1]
        row = _Row(
            mark=mark,
            offset=record.offset,
            since=held.since if held is not None and _is_same(said, held) else record.offset,
            timestamp=record.timestamp,
            value=record.value,
            due=None if view.keep_ms is None else from_ + view.keep_ms,
            end=said.end,
            written=record.timestamp if is_spark or held is None else held.written,
            is_stated=said.mark[-2] == mark[-2],
            ending=-1 if held is None else held.ending,
            is_open=held is not None and held.is_open and held.end == said.end,
        )
        self._rows[place] = row
        self._overtaken.pop(place, None)
        self._unstated.discard(place)
        if row.due is not None:
            self._enqueue(row.due, place)
        if row.end is not None:
            self._settle(place, row)

    def _open_again(self, place: Place, row: _Row) -> None:
        """A provisional row waits for the end of its window, once."""
        if row.stage == PROVISIONAL and row.end is not None and not row.is_open:
            row.is_open = True
            heapq.heappush(self._open[place.topic], (row.end, place))

    def _settle(self, place: Place, row: _Row) -> None:
        """Wait for a provisional row's window; of one that is over say so, or be done with it."""
        if row.stage == PROVISIONAL:
            self._open_again(place, row)
            return
        if not row.is_stated:
            self._unstated.add(place)
            return
        self._unstated.discard(place)
        if self._views[place.topic].keep_ms is None:
            row.value = None  # nothing of ours will need it again
        if row.end is not None and self._views[place.topic].keep_ms is None:
            heapq.heappush(self._aging[place.topic], (row.end, place))

    def _end(self, place: Place, held: _Row, record: Record) -> None:
        ends = int(dict(record.headers).get(ENDS, str(record.offset).encode()))
        if held.since > ends and not held.is_gone and held.value is not None:
            value = written(held.value, held.stage, record.offset)
            self._overtaken[place] = Return(place, value, held.timestamp)
        held.is_gone, held.is_stated = True, True
        held.offset = held.ending = record.offset
        if place not in self._overtaken:
            held.value = None
        self._unstated.discard(place)
        heapq.heappush(self._ended[place.topic], (held.written, place))

    def _repeated(self, place: Place, held: _Row, record: Record, said: _Said) -> None:
        """Servers ignore this record, but compaction keeps it alone, as the newest of its key."""
        if held.is_gone:
            if held.due is not None and place not in self._overtaken:
                held.offset = record.offset
                self._enqueue(held.due, place)
            return
        if said.mark[:-2] == held.mark[:-2]:
            held.offset, held.value = record.offset, record.value
            held.is_stated = said.mark[-2] == held.stage
        else:
            if said.mark[-2] != PROVISIONAL:
                held.mark = (*held.mark[:-2], CORRECTED, held.mark[-1])
            # Without its value the row waits for Spark, which repeats up to the newest.
            held.is_stated, held.stating = False, -1
        if held.end is not None:
            self._settle(place, held)

    def _enqueue(self, due: int, place: Place) -> None:
        if place not in self._queued:
            self._queued.add(place)
            heapq.heappush(self._queue, (due, place))


def stateful(views: Iterable[ViewPlan]) -> Iterator[ViewPlan]:
    """The views whose rows become final: tables of windows of a time that a watermark tells."""
    for view in views:
        counted = view.window_spec is not None and view.window_spec.kind == "count"
        if view.key is not None and view.window is not None and view.is_timed and not counted:
            yield view


def written(value: bytes, stage: int, returned: int = 0) -> bytes:
    """The row with its state, and told apart from itself as it was before a tombstone."""
    row = _OURS.sub(b"", value)
    if stage != PROVISIONAL:
        row += b'%b"_state":"%b"' % (b"," * (row != b"{"), STATES[stage].encode())
    if returned:
        row += b'%b"_returned":%d' % (b"," * (row != b"{"), returned)
    return row + b"}"


def _is_same(said: _Said, held: _Row) -> bool:
    """Whether a record speaks of the row that is held, but for its stage."""
    mark, other = said.mark, held.mark
    is_told_apart = is_known(mark) or mark[-2] != PROVISIONAL
    return is_told_apart and mark[:-2] == other[:-2] and mark[-1] == other[-1]


def _window_end(row: Mapping[str, Any], column: str | None) -> int | None:
    window = row.get(column) if column is not None else None
    end = window.get("end") if isinstance(window, dict) else None
    try:
        return to_ms(end) if end else None
    except (TypeError, ValueError, OverflowError):
        return None
