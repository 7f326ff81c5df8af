"""A client's subscription: its position in the changes of a view, and the messages it gets next.

A subscription is a cursor, not a queue. While a client's transport is full, nothing is kept for
it. When the transport has room again, the subscription continues from its cursor: from the ring;
from Kafka if the ring no longer has the change; with a gap and a snapshot if Kafka lacks it too.
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
from millstream.serve.access.visibility import SEES_ALL, Visibility
from millstream.serve.views.encoding import Encoding, MessageFormat, encode
from millstream.serve.views.replay import PositionUnavailable, Replay
from millstream.serve.views.served_view import SelectedRows, ServedView
from millstream.store.views.ring import Offsets, ViewChange, covers
from millstream.values.position import Position

_log = logging.getLogger(__name__)
_TURN_SECONDS = 0.05  # then other clients have their turn
_MAX_COUNTED = 1_000  # changes that are tested by a policy, to count those that are visible
_MAX_PENDING = 200  # messages from Kafka that wait for the transport
_DEFAULT_LIMIT = 100  # rows of a view without key


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Which rows a client wants, and which of their columns."""

    where: str | None = None
    select: tuple[str, ...] | None = None
    lineage: bool = False
    limit: int | None = None
    visibility: Visibility = SEES_ALL  # which rows and columns exist for the client

    def encoding(self, served: ServedView) -> Encoding:
        return served.encoding(self.where, self.select, self.lineage, self.visibility)

    def row_limit(self, served: ServedView) -> int | None:
        """The limit for a snapshot; views without key have a default."""
        if self.limit is None and not (served.table.keyed or served.sends_full_history):
            return _DEFAULT_LIMIT
        return self.limit


class Subscription:
    """Messages for one client about one view; `wake` is called when there may be new ones.

    Subscriptions of one client share a `snapshot_lock`: only one at a time holds a large snapshot.
    """

    def __init__(
        self,
        served: ServedView,
        selection: RowSelection,
        message_format: MessageFormat,
        wake: Callable[[], None],
        replay: Replay,
        *,
        after: Position | None = None,
        snapshot_lock: asyncio.Lock | None = None,
    ) -> None:
        self.served = served
        self._snapshot_lock = snapshot_lock or asyncio.Lock()
        self._encoding = selection.encoding(served)
        self._selection = selection
        self._format = message_format
        self._wake = wake
        self._replay = replay
        self._limit = selection.row_limit(served)
        self._pending: deque[bytes] = deque()
        self._drained = asyncio.Event()  # no pending message is left
        self._task: asyncio.Task[None] | None = None
        self._epoch = served.epoch
        self._restarts = served.restarts
        self._cursor = served.table.ring.end
        self._offsets: Offsets = served.table.offsets
        self._sent_offsets: Offsets = ()  # the newest position that the client was sent
        self._ahead = False  # the client has seen changes that our next ones do not cover
        self._is_slow = False
        self._failed = False
        self._has_more = False  # the turn ended before all changes were looked at
        served.subscribers.add(wake)
        self._begin(after)

    def close(self) -> None:
        self.served.subscribers.discard(self._wake)
        if self._task is not None:
            self._task.cancel()

    @property
    def position(self) -> Position:
        return Position(self._epoch, dict(enumerate(self._offsets)))

    @property
    def behind(self) -> int:
        """Changes that the client has not been sent yet.

        Changes of rows that a policy hides do not count; of the others, the newest 1,000 do.
        """
        ring = self.served.table.ring
        if not self._encoding.hides_rows:
            return max(0, ring.end - self._cursor)
        start = max(self._cursor, ring.start, ring.end - _MAX_COUNTED)
        return sum(self._encoding.concerns(ring[n]) for n in range(start, ring.end))

    @property
    def has_pending(self) -> bool:
        """Whether messages are ready to be sent; `position` is after them."""
        return bool(self._pending)

    @property
    def has_more(self) -> bool:
        """Whether `next_messages` stopped early. It will wake the client again."""
        return self._has_more

    @property
    def is_busy(self) -> bool:
        """Whether messages will come without a new change: a snapshot, a replay, a slow filter."""
        return self._task is not None or bool(self._pending) or self._has_more

    def refresh(self) -> bytes | None:
        """A message with the position, if the filter has hidden all changes since the last one."""
        if self._sent_offsets == self._offsets or self.is_busy:
            return None
        return self._lag()

    def mark_slow(self) -> None:
        """Note that the transport is full; the client's next message is its lag."""
        self._is_slow = True

    def next_messages(self, size: int = 65_536) -> list[bytes]:
        """The next messages, about `size` bytes of them; empty if there are none now.

        Stops after a short time, because a filter may skip many changes. It then wakes the client
        again.
        """
        if self._has_more:  # the next turn is scheduled already
            return []
        if self._failed:
            messages, self._pending = list(self._pending), deque()
            return messages
        if self._restarts != self.served.restarts:
            is_new = self._epoch != self.served.epoch
            self._restart(_replaced(self.served) if is_new else "the server had to read it again")
        messages = []
        while size > 0 and self._pending:
            messages.append(self._pending.popleft())
            size -= len(messages[-1])
        if not self._pending:
            self._drained.set()
        if self._task is not None or self._pending:
            return messages
        ring = self.served.table.ring
        if self._is_slow and not messages:
            self._is_slow = False
            if self._cursor < ring.end:
                messages.append(self._lag())
        end = time.monotonic() + _TURN_SECONDS
        while size > 0 and self._cursor < ring.end:
            if self._cursor < ring.start:
                self._start(self._read_log)
                break
            if time.monotonic() > end:
                self._has_more = True
                asyncio.get_running_loop().call_later(0, self._next_turn)
                break
            message = self._advance(ring[self._cursor], self._cursor)
            self._cursor += 1
            if message is not None:
                messages.append(message)
                size -= len(message)
        else:
            if self._cursor == ring.end and covers(self.served.table.offsets, self._offsets):
                self._offsets, self._ahead = self.served.table.offsets, False
        return messages

    def _next_turn(self) -> None:
        self._has_more = False
        self._wake()

    def _begin(self, after: Position | None) -> None:
        if after is None:
            self._send_snapshot()
            return
        if after.epoch != self._epoch:
            self._gap(after, _replaced(self.served))
            return
        partitions = len(self._offsets)
        if any(partition >= partitions for partition in after.offsets):
            self._gap(after, "the position names a partition that the topic does not have")
            return
        self._offsets = tuple(after.offsets.get(p, 0) for p in range(partitions))
        self._resume()

    def _resume(self) -> None:
        """Continue from the client's position, in the ring or in the log."""
        table = self.served.table
        if not table.ring.holds(self._offsets):
            self._start(self._read_log)
            return
        ring, self._cursor = table.ring, table.ring.find(self._offsets)
        # Another server, which gave the position, may have read the partitions in another order.
        # Some of our next changes are then ones that the client has seen.
        following = ring[self._cursor].offsets if self._cursor < ring.end else table.offsets
        self._ahead = not covers(following, self._offsets)
        if not covers(table.offsets, self._offsets):
            self._start(partial(self._check_end, self.position))

    def _restart(self, reason: str) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._pending.clear()
        asked = self.position
        self._epoch, self._restarts = self.served.epoch, self.served.restarts
        with contextlib.suppress(MillstreamError):  # a filter that no longer fits matches no row
            self._encoding = self._selection.encoding(self.served)
        self._gap(asked, reason)

    def _gap(self, asked: Position, reason: str) -> None:
        fields = b'"asked":%b,"reason":%b' % (encode(str(asked)), encode(reason))
        self._pending.append(self._format.message("gap", str(self.served.position), fields))
        self._send_snapshot()

    def _lag(self) -> bytes:
        self._sent_offsets = self._offsets
        return self._format.message("lag", str(self.position), b'"behind":%d' % self.behind)

    def _advance(self, change: ViewChange, number: int) -> bytes | None:
        """Move past a change; its message if it is for this client."""
        if self._ahead:
            seen = self._offsets
            if change.partition < len(seen) and change.offset < seen[change.partition]:
                return None
            self._offsets = _highest(seen, change.offsets)
            self._ahead = not covers(change.offsets, seen)
        else:
            self._offsets = change.offsets
        body = self._encoding.body(change, number)
        if body is None:
            return None
        self._sent_offsets = self._offsets
        return self._format.change(body, self._position_text())

    def _position_text(self) -> bytes:
        if len(self._offsets) == 1:  # the usual case, and this runs for each message
            return b"%b:0=%d" % (self._epoch.encode(), self._offsets[0])
        return str(self.position).encode()

    def _send_snapshot(self) -> None:
        if self.served.sends_full_history and self._limit is None:
            self._start(self._send_full_history)
        elif self.served.is_expensive(self._encoding):
            self._start(self._send_large_snapshot)
        else:
            position, rows = self._prepare_snapshot()
            self._pending.append(self._snapshot(position, rows()))

    async def _send_large_snapshot(self) -> None:
        """Make a snapshot in a thread, when no other one of this client is held."""
        async with self._snapshot_lock:
            position, rows = self._prepare_snapshot()
            try:
                self._pending.append(self._snapshot(position, await asyncio.to_thread(rows)))
            except QueryError as error:
                self._fail(error)
                return
            await self._wait_until_drained()

    def _prepare_snapshot(self) -> tuple[str, Callable[[], bytes]]:
        """The position after which changes follow, and a function that encodes the rows there."""
        served, encoding, limit = self.served, self._encoding, self._limit
        self._cursor, self._ahead = served.table.ring.end, False
        self._offsets = self._sent_offsets = served.table.offsets
        position = str(served.position)
        make = partial(_encode_rows, encoding, served.prepare_rows(encoding, limit=limit))
        return position, lambda: served.snapshots.get(position, (encoding, limit), make)

    def _fail(self, error: QueryError) -> None:
        """End with an error: without the rows, changes to them mean nothing."""
        fields = b'"title":"Bad Request","detail":%b' % encode(str(error))
        self._pending.append(self._format.message("error", str(self.served.position), fields))
        self._failed = True
        self.served.subscribers.discard(self._wake)

    async def _send_full_history(self) -> None:
        """Send an empty snapshot at the log's first position, then each record as a change."""
        self._offsets, self._ahead = await self._replay.first(self.served), False
        self._sent_offsets = self._offsets
        self._pending.append(self._snapshot(str(self.position), b'"rows":[]'))
        self._resume()

    def _snapshot(self, position: str, rows: bytes) -> bytes:
        served = self.served
        name = b'"%b":%b' % (served.kind.encode(), encode(served.name))
        fields = b'"watermark":%b,%b,%b' % (served.watermark_json, name, rows)
        return self._format.message("snapshot", position, fields)

    async def _read_log(self) -> None:
        """Send changes that are no longer in the ring from Kafka, as fast as the client reads."""
        asked, floor = self.position, self.served.table.ring.floor
        try:
            end = time.monotonic() + _TURN_SECONDS
            async for change in self._replay.changes(self.served, self._offsets, self._encoding):
                self._offsets = _highest(self._offsets, change.offsets)
                body = self._encoding.body(change)
                if time.monotonic() > end:
                    await asyncio.sleep(0)
                    end = time.monotonic() + _TURN_SECONDS
                if body is not None:
                    self._pending.append(self._format.change(body, self._position_text()))
                    if len(self._pending) >= _MAX_PENDING:
                        await self._wait_until_drained()
        except PositionUnavailable as reason:
            self._gap(asked, str(reason))
            return
        except LogError as error:
            _log.warning("%s", error)
            self._gap(asked, "the log could not be read")
            return
        # The last offsets before the ring may be no records, but the end of a transaction.
        self._offsets = _highest(self._offsets, floor)
        self._resume()

    async def _wait_until_drained(self) -> None:
        self._drained.clear()
        self._wake()
        await self._drained.wait()

    async def _check_end(self, asked: Position) -> None:
        """Send a gap if the position is beyond the log's end: the log has lost its last records."""
        if await self._replay.is_beyond_end(self.served, self._offsets):
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


def _replaced(served: ServedView) -> str:
    """Why a position of another epoch cannot be used."""
    if served.kind == "view":
        return f"view {served.name} was rebuilt"
    return f"the topic of {served.kind} {served.name} was created again"


def _highest(one: Sequence[int], other: Sequence[int]) -> Offsets:
    """The higher offset of each partition."""
    width = max(len(one), len(other))
    padded = [(*v, *(0,) * (width - len(v))) for v in (one, other)]
    return tuple(map(max, *padded))


def _encode_rows(encoding: Encoding, select: Callable[[], SelectedRows]) -> bytes:
    """Rows with their keys, the total, and whether the limit left some out."""
    selected = select()
    truncated = encode(len(selected.rows) < selected.total)
    rows = encoding.encode_rows(selected.rows)
    return b'"total":%d,"truncated":%b,"rows":%b' % (selected.total, truncated, rows)
