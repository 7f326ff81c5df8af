"""A client's place in the changes of a view, and what it gets next.

A subscription is a cursor, not a queue: while a client's transport is full nothing is kept for it.
When it can take more it goes on from its cursor: from the ring; if that has moved on, from Kafka;
if Kafka does not hold it either, with a gap and a snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from millstream.errors import LogError, MillstreamError, QueryError
from millstream.serve.views.encoding import Frame, Shape, encode
from millstream.serve.views.replay import Gone, Replay
from millstream.serve.views.served_view import Chosen, Live
from millstream.store.views.ring import Change, Offsets, covers
from millstream.values.position import Position

_log = logging.getLogger(__name__)
_TURN_SECONDS = 0.05  # then others have theirs


@dataclass(frozen=True, slots=True)
class Asked:
    """Which rows, and what of them."""

    where: str | None = None
    select: tuple[str, ...] | None = None
    lineage: bool = False
    limit: int | None = None

    def shape(self, live: Live) -> Shape:
        return live.shape(self.where, self.select, self.lineage)


class Subscription:
    """Messages for one client about one view; `wake` is called when there may be some to take.

    Who has several of them gives each the same `turn`: only one at a time holds a large snapshot.
    """

    def __init__(
        self,
        live: Live,
        asked: Asked,
        frame: Frame,
        wake: Callable[[], None],
        replay: Replay,
        *,
        after: Position | None = None,
        turn: asyncio.Lock | None = None,
    ) -> None:
        self.live = live
        self._turn = turn or asyncio.Lock()
        self.shape = asked.shape(live)
        self._asked = asked
        self._frame = frame
        self._wake = wake
        self._replay = replay
        shows_all = live.table.keyed or live.adds_up
        self._limit = asked.limit if asked.limit is not None or shows_all else 100
        self._ready: deque[bytes] = deque()
        self._taken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._epoch = live.epoch
        self._beginning = live.beginnings
        self._cursor = live.table.ring.end
        self._offsets: Offsets = live.table.offsets
        self._told: Offsets = ()  # the newest position that the client was sent
        self._ahead = False  # the client has seen changes that our next ones do not cover
        self._stalled = False
        self._failed = False
        self._more = False  # changes wait that a turn had not the time for
        live.watchers.add(wake)
        self._begin(after)

    def close(self) -> None:
        self.live.watchers.discard(self._wake)
        if self._task is not None:
            self._task.cancel()

    @property
    def position(self) -> Position:
        return Position(self._epoch, dict(enumerate(self._offsets)))

    @property
    def behind(self) -> int:
        """Changes that the client has not been given yet."""
        return max(0, self.live.table.ring.end - self._cursor)

    @property
    def has_ready(self) -> bool:
        """Whether messages are made already that were not taken: `position` is after them."""
        return bool(self._ready)

    @property
    def has_more(self) -> bool:
        """Whether `take` ended early and will wake the client again: others have their turn."""
        return self._more

    @property
    def is_busy(self) -> bool:
        """Whether messages are on their way that take a while: a snapshot, a replay, a filter."""
        return self._task is not None or bool(self._ready) or self._more

    def refresh(self) -> bytes | None:
        """How far the client has come, if it cannot know: its filter let nothing through."""
        if self._told == self._offsets or self.is_busy:
            return None
        return self._lag()

    def stall(self) -> None:
        """The client's transport is full: when it takes more, tell it how far behind it is."""
        self._stalled = True

    def take(self, size: int = 65_536) -> list[bytes]:
        """The next messages, about `size` bytes of them; none if there is nothing now.

        It does not go on for long: a filter may have to look at many changes that are not for this
        client. It then asks to be called again.
        """
        if self._more:  # its next turn comes, whoever asks for one before
            return []
        if self._failed:
            messages, self._ready = list(self._ready), deque()
            return messages
        if self._beginning != self.live.beginnings:
            is_other = self._epoch != self.live.epoch
            self._restart(_replaced(self.live) if is_other else "the server had to read it again")
        messages = []
        while size > 0 and self._ready:
            messages.append(self._ready.popleft())
            size -= len(messages[-1])
        if not self._ready:
            self._taken.set()
        if self._task is not None or self._ready:
            return messages
        ring = self.live.table.ring
        if self._stalled and not messages:
            self._stalled = False
            if self._cursor < ring.end:
                messages.append(self._lag())
        end = time.monotonic() + _TURN_SECONDS
        while size > 0 and self._cursor < ring.end:
            if self._cursor < ring.start:
                self._catch_up()
                break
            if time.monotonic() > end:
                self._more = True
                asyncio.get_running_loop().call_later(0, self._next_turn)
                break
            message = self._pass(ring[self._cursor], self._cursor)
            self._cursor += 1
            if message is not None:
                messages.append(message)
                size -= len(message)
        else:
            if self._cursor == ring.end and covers(self.live.table.offsets, self._offsets):
                self._offsets, self._ahead = self.live.table.offsets, False
        return messages

    def _next_turn(self) -> None:
        self._more = False
        self._wake()

    def _begin(self, after: Position | None) -> None:
        if after is None:
            self._send_snapshot()
            return
        if after.epoch != self._epoch:
            self._gap(after, _replaced(self.live))
            return
        partitions = len(self._offsets)
        if any(partition >= partitions for partition in after.offsets):
            self._gap(after, "the position names a partition that the topic does not have")
            return
        self._offsets = tuple(after.offsets.get(p, 0) for p in range(partitions))
        self._resume()

    def _resume(self) -> None:
        """Go on from the client's position, wherever that is held."""
        table = self.live.table
        if table.ring.holds(self._offsets):
            ring, self._cursor = table.ring, table.ring.find(self._offsets)
            # We may have read the partitions in another order than the server that gave the
            # position: then our next changes are partly ones that the client has seen.
            following = ring[self._cursor].offsets if self._cursor < ring.end else table.offsets
            self._ahead = not covers(following, self._offsets)
            if not covers(table.offsets, self._offsets):
                self._start(partial(self._check_end, self.position))
        else:
            self._catch_up()

    def _restart(self, reason: str) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._ready.clear()
        asked = self.position
        self._epoch, self._beginning = self.live.epoch, self.live.beginnings
        with contextlib.suppress(MillstreamError):  # a filter that no longer fits finds nothing
            self.shape = self._asked.shape(self.live)
        self._gap(asked, reason)

    def _gap(self, asked: Position, reason: str) -> None:
        fields = b'"asked":%b,"reason":%b' % (encode(str(asked)), encode(reason))
        self._ready.append(self._frame.message("gap", str(self.live.position), fields))
        self._send_snapshot()

    def _lag(self) -> bytes:
        self._told = self._offsets
        return self._frame.message("lag", str(self.position), b'"behind":%d' % self.behind)

    def _pass(self, change: Change, number: int | None) -> bytes | None:
        """Move past a change; the message, if it is for this client."""
        if self._ahead:
            seen = self._offsets
            if change.partition < len(seen) and change.offset < seen[change.partition]:
                return None
            self._offsets = _greatest(seen, change.offsets)
            self._ahead = not covers(change.offsets, seen)
        else:
            self._offsets = change.offsets
        body = self.shape.body(change, number)
        if body is None:
            return None
        self._told = self._offsets
        return self._frame.change(body, self._place())

    def _place(self) -> bytes:
        if len(self._offsets) == 1:  # the usual case, and this runs for each message
            return b"%b:0=%d" % (self._epoch.encode(), self._offsets[0])
        return str(self.position).encode()

    def _send_snapshot(self) -> None:
        live, shape = self.live, self.shape
        if live.adds_up and self._limit is None:
            self._start(self._send_all)
            return
        if live.is_slow(shape):
            self._start(self._send_beside)
        else:
            position, rows = self._choose()
            self._ready.append(self._snapshot(position, rows()))

    async def _send_beside(self) -> None:
        """A large snapshot, made in its turn and beside the event loop."""
        async with self._turn:
            position, rows = self._choose()
            try:
                self._ready.append(self._snapshot(position, await asyncio.to_thread(rows)))
            except QueryError as error:
                self._fail(error)
                return
            await self._drained()

    def _choose(self) -> tuple[str, Callable[[], bytes]]:
        """The position from which the client goes on, and what gives the rows that it has then."""
        live, shape, limit = self.live, self.shape, self._limit
        self._cursor, self._offsets, self._ahead = live.table.ring.end, live.table.offsets, False
        self._told = self._offsets
        position, choose = str(live.position), live.choice(shape, limit=limit)
        make = partial(_encode_chosen, shape, choose)
        return position, lambda: live.snapshots.get(position, (shape, limit), make)

    def _fail(self, error: QueryError) -> None:
        """End with an error: the rows cannot be chosen, so changes to them mean nothing."""
        fields = b'"title":"Bad Request","detail":%b' % encode(str(error))
        self._ready.append(self._frame.message("error", str(self.live.position), fields))
        self._failed = True
        self.live.watchers.discard(self._wake)

    async def _send_all(self) -> None:
        """No rows, at the first position that the log holds; then each as a change."""
        self._offsets, self._ahead = await self._replay.first(self.live), False
        self._told = self._offsets
        self._ready.append(self._snapshot(str(self.position), b'"rows":[]'))
        self._resume()

    def _snapshot(self, position: str, rows: bytes) -> bytes:
        live = self.live
        fields = b'"watermark":%b,"%b":%b,%b' % (
            *(live.watermark_json, live.kind.encode(), encode(live.name)),
            rows,
        )
        return self._frame.message("snapshot", position, fields)

    def _catch_up(self) -> None:
        self._start(self._read_log)

    async def _read_log(self) -> None:
        """Give the client what the ring has no longer, from Kafka, no faster than it takes it."""
        asked, floor = self.position, self.live.table.ring.floor
        try:
            end = time.monotonic() + _TURN_SECONDS
            async for change in self._replay.changes(self.live, self._offsets):
                message = self._pass_old(change)
                if time.monotonic() > end:
                    await asyncio.sleep(0)
                    end = time.monotonic() + _TURN_SECONDS
                if message is not None:
                    self._ready.append(message)
                    if len(self._ready) >= 200:
                        await self._drained()
        except Gone as gone:
            self._gap(asked, str(gone))
            return
        except LogError as error:
            _log.warning("%s", error)
            self._gap(asked, "the log could not be read")
            return
        # The last offsets before the ring may hold no record, but the end of a transaction.
        self._offsets = _greatest(self._offsets, floor)
        self._resume()

    def _pass_old(self, change: Change) -> bytes | None:
        self._offsets = _greatest(self._offsets, change.offsets)
        body = self.shape.body(change)
        return None if body is None else self._frame.change(body, self._place())

    async def _drained(self) -> None:
        self._taken.clear()
        self._wake()
        await self._taken.wait()

    async def _check_end(self, asked: Position) -> None:
        """A position beyond the log's end is none of this log's: it lost its tail."""
        if await self._replay.is_beyond_end(self.live, self._offsets):
            self._gap(asked, "the position is beyond the end of the log")

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            try:
                await work()
            finally:
                if self._task is asyncio.current_task():
                    self._task = None
            self._wake()

        self._task = asyncio.get_running_loop().create_task(run())


def _replaced(live: Live) -> str:
    """Why a position of another epoch is of no use."""
    if live.kind == "view":
        return f"view {live.name} was rebuilt"
    return f"the topic of {live.kind} {live.name} was created again"


def _greatest(one: Sequence[int], other: Sequence[int]) -> Offsets:
    width = max(len(one), len(other))
    padded = [(*v, *(0,) * (width - len(v))) for v in (one, other)]
    return tuple(map(max, *padded))


def _encode_chosen(shape: Shape, choose: Callable[[], Chosen]) -> bytes:
    """Rows with their keys, how many there are, and whether these are all."""
    chosen = choose()
    truncated = encode(len(chosen.rows) < chosen.total)
    rows = shape.encode_rows(chosen.rows)
    return b'"total":%d,"truncated":%b,"rows":%b' % (chosen.total, truncated, rows)
