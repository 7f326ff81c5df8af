"""A client's subscription: its position in the changes of a view, and the messages it gets next.

A subscription is a cursor, not a queue. While a client's transport is full, nothing is kept for
it. When the transport has room again, the subscription continues from its cursor: from the ring;
from Kafka if the ring no longer has the change; with a gap and a snapshot if Kafka lacks it too.

A client that asked to conflate does not get a change if the ring has a newer one of the same key.
A delete is left out only if the newest change brings the row back: so whatever position the client
resumes from, its rows are right in the end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from millstream.errors import LogError, MillstreamError, QueryError
from millstream.serve.connections import SubscriptionReport
from millstream.serve.subscriptions.lag import (
    DISCONNECT_SECONDS,
    LagWatch,
    Waiting,
    waiting_changes,
)
from millstream.serve.subscriptions.outbox import Outbox, Turns
from millstream.serve.subscriptions.pace import Pace, Thinning
from millstream.serve.subscriptions.selection import RowSelection
from millstream.serve.views.encoding import Encoding, MessageFormat, SnapshotPage, encode
from millstream.serve.views.pages import Difference, Snapshot, name_json, rows_before
from millstream.serve.views.replay import Replay, Start, StartTime
from millstream.serve.views.served_view import PositionUnavailable, ServedView
from millstream.store.views.ring import Offsets, ViewChange, covers, highest
from millstream.values.clock import now_ms
from millstream.values.position import Position

_log = logging.getLogger(__name__)
_TURN_SECONDS = 0.05  # then other clients have their turn
_MAX_PENDING = 200  # messages from Kafka that wait for the transport
_LATE_MS = 2_000  # a client with max_rate is told about its lag from then on


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
        after: Start | None = None,
        pace: Pace | None = None,
        snapshot_lock: asyncio.Lock | None = None,
    ) -> None:
        self.served = served
        self.is_paused = False
        self._thinning = Thinning(served, pace or Pace())
        self._thinning.pace.check(served)
        self._snapshot_lock = snapshot_lock or asyncio.Lock()
        self._encoding = selection.encoding(served)
        self._selection = selection
        self._format = message_format
        self._wake = wake
        self._replay = replay
        self._limit = selection.row_limit(served)
        self._outbox = Outbox(wake)
        self._turns = Turns(wake)
        self._epoch = served.epoch
        self._restarts = served.restarts
        self._cursor = served.table.ring.end
        self._offsets: Offsets = served.table.offsets
        self._sent_offsets: Offsets = ()  # the newest position that the client was sent
        self._ahead = False  # the client has seen changes that our next ones do not cover
        self._from_time = False  # the client asked for everything since a time
        self._lag = LagWatch()
        self._answers = 0  # `updated` messages to send at once
        self._answers_after_rows = 0  # and those that follow rows
        self._failed = False
        served.subscribe(wake, self._encoding)
        self._begin(after)

    def close(self) -> None:
        self.served.unsubscribe(self._wake)
        self._outbox.clear()
        self._turns.stop()

    @property
    def position(self) -> Position:
        return Position(self._epoch, dict(enumerate(self._safe_offsets)))

    @property
    def watermark_json(self) -> bytes:
        return self.served.watermark_json

    @property
    def _safe_offsets(self) -> Offsets:
        """Where the client must resume: before the oldest change that is held back."""
        return self._thinning.held_since or self._offsets

    @property
    def skipped(self) -> int:
        """Changes that were left out for the client."""
        return self._thinning.skipped

    @property
    def behind(self) -> int:
        """Changes that wait for the client, as far as it may know of them."""
        return self._waiting().changes

    def _use(self, encoding: Encoding) -> None:
        self._encoding = encoding
        if self._wake in self.served.subscribers:
            self.served.subscribe(self._wake, encoding)

    def _skip(self) -> None:
        """Move past changes of which the index says that they are not for this filter."""
        is_still = not (self._ahead or self._thinning.is_active or self.is_paused or self.is_busy)
        if is_still and self._restarts == self.served.restarts:
            self._cursor, self._offsets = self._encoding.concerned.skip(
                self.served.table, self._cursor, self._offsets
            )

    @property
    def _has_waiting(self) -> bool:
        self._skip()
        return self._cursor < self.served.table.ring.end

    @property
    def report(self) -> SubscriptionReport:
        served, where = self.served, self._selection.where
        return SubscriptionReport(served.kind, served.name, where, self.behind, self.skipped)

    @property
    def has_pending(self) -> bool:
        """Whether messages are ready to be sent; `position` is after them."""
        return bool(self._outbox)

    @property
    def has_more(self) -> bool:
        """Whether `next_messages` stopped early. It will wake the client again."""
        return self._turns.is_next

    @property
    def is_busy(self) -> bool:
        """Whether messages will come without a new change: a snapshot, a replay, a slow filter."""
        return self._outbox.is_working or bool(self._outbox) or self._turns.is_next

    def refresh(self) -> bytes | None:
        """A message with the position, if the filter has hidden all changes since the last one."""
        self._skip()
        if self._sent_offsets == self._safe_offsets or self.is_busy or self.is_paused:
            return None
        return self._report_lag()

    def mark_slow(self) -> None:
        """Note that the transport is full; the client is told its lag when there is room."""
        if self._has_waiting and not self.is_paused:
            self._lag.mark(self._waiting)

    def is_too_slow(self, full_seconds: float) -> bool:
        """Whether to disconnect the client, because it asked for that."""
        if self._thinning.pace.when_slow != "disconnect" or not self._has_waiting or self.is_paused:
            return False
        return full_seconds >= DISCONNECT_SECONDS or self._cursor < self.served.table.ring.start

    def pause(self) -> None:
        """Send nothing until `resume`; the cursor stays where it is."""
        self.is_paused = True
        self.served.unsubscribe(self._wake)

    def resume(self) -> None:
        """Continue from the cursor: from the ring, or from Kafka."""
        self.is_paused = False
        if not self._failed:
            self.served.subscribe(self._wake, self._encoding)

    def update(self, fields: Mapping[str, Any]) -> None:
        """Change the filter, the columns or the pace; QueryError if one does not fit.

        `updated` follows when the client has all rows that it asks for now.
        """
        pace = self._thinning.pace.changed(fields)
        pace.check(self.served)
        selection = self._selection.changed(fields)
        encoding = selection.encoding(self.served)
        if pace != self._thinning.pace:
            self._thinning.use(pace)
        if encoding is self._encoding:
            self._answers += 1
            return
        only_where = replace(selection, where=self._selection.where) == self._selection
        old, self._selection = self._encoding, selection
        self._use(encoding)
        self._answers_after_rows += 1
        if only_where and self._can_compare():
            self._outbox.start(partial(self._send_difference, old))
        else:
            self._outbox.clear()
            self._send_snapshot()

    def next_messages(self, size: int = 65_536) -> list[bytes]:
        """The next messages, about `size` bytes of them; empty if there are none now.

        Stops after a short time, because a filter may skip many changes. It then wakes the client
        again.
        """
        if self._turns.is_next or self.is_paused:  # the next turn is scheduled already
            return []
        if self._failed:
            return self._outbox.take(size, lambda: True)
        if self._restarts != self.served.restarts:
            is_new = self._epoch != self.served.epoch
            self._restart(self.served.replaced if is_new else "the server had to read it again")
        messages = [self._updated()] * self._answers
        self._answers = 0
        messages += self._outbox.take(size, self._admits_change)
        if self._outbox.is_working or self._outbox:
            return messages
        messages += [self._updated()] * self._answers_after_rows
        self._answers_after_rows = 0
        size -= sum(map(len, messages))
        if self._lag.is_due and not messages and self._has_waiting:
            messages.append(self._report_lag())
        if self._thinning.key_limit is not None:
            messages += self._take_held(size)
        messages += self._walk(size)
        if self._lag.has_recovered and not self._has_waiting and not self._outbox.is_working:
            messages.append(self._report_lag())
        return messages

    def _admits_change(self) -> bool:
        """Whether the rate allows a change from Kafka now."""
        if wait := self._thinning.rate_wait():
            self._turns.after(wait)
            return False
        self._thinning.count_sent()
        return True

    def _take_held(self, size: int) -> list[bytes]:
        """Changes of fast keys that are due."""
        messages: list[bytes] = []
        while size > 0 and (change := self._thinning.take_held()) is not None:
            if (body := self._encoding.body(change)) is not None:
                messages.append(self._change(body))
                size -= len(messages[-1])
        return messages

    def _walk(self, size: int) -> list[bytes]:
        """Changes from the cursor on."""
        ring, messages = self.served.table.ring, []
        end = time.monotonic() + _TURN_SECONDS
        while size > 0 and self._has_waiting:
            if self._cursor < ring.start:
                self._leave_ring()
                break
            if time.monotonic() > end:
                self._turns.again()
                break
            if self._thinning.is_active and self._must_wait():
                break
            message = self._advance(ring[self._cursor], self._cursor)
            self._cursor += 1
            if message is not None:
                messages.append(message)
                size -= len(message)
        else:
            if self._cursor == ring.end and covers(self.served.table.offsets, self._offsets):
                self._offsets, self._ahead = self.served.table.offsets, False
        limit = self._thinning.key_limit
        if limit is not None and (wait := limit.wait()) is not None:
            self._turns.after(max(wait, 0.001))
        return messages

    def _must_wait(self) -> bool:
        """Whether a rate allows no change now."""
        if not (wait := self._thinning.wait()):
            return False
        self._turns.after(wait)
        waited = now_ms() - self.served.table.ring[self._cursor].timestamp
        if not self._thinning.pace.conflates and waited > _LATE_MS:
            self._lag.mark(self._waiting)
        return True

    def _advance(self, change: ViewChange, number: int) -> bytes | None:
        """Move past a change; its message if it is for this client, and for now."""
        before = self._offsets
        if self._ahead:
            if change.partition < len(before) and change.offset < before[change.partition]:
                return None
            self._offsets = highest(before, change.offsets)
            self._ahead = not covers(change.offsets, before)
        else:
            self._offsets = change.offsets
        thinning, encoding = self._thinning, self._encoding
        if thinning.is_active and thinning.leaves_out(change, number, before, encoding):
            return None
        body = encoding.body(change, number)
        if body is None or thinning.is_active:
            return None if body is None else self._change(body)
        self._sent_offsets = self._offsets  # the usual case, and this runs for each message
        return self._format.change(body, self._position_text(self._offsets))

    def _change(self, body: bytes) -> bytes:
        self._thinning.count_sent()
        self._sent_offsets = self._safe_offsets
        skipped = self._thinning.skipped_json()
        return self._format.change(skipped + body, self._position_text(self._sent_offsets))

    def _position_text(self, offsets: Offsets) -> bytes:
        if len(offsets) == 1:
            return b"%b:0=%d" % (self._epoch.encode(), offsets[0])
        return str(Position(self._epoch, dict(enumerate(offsets)))).encode()

    def _updated(self) -> bytes:
        return self._format.message("updated", str(self.position), b'"paused":false')

    def _gap(self, asked: Position, reason: str) -> None:
        fields = b'"asked":%b,"reason":%b' % (encode(str(asked)), encode(reason))
        fields = self._thinning.skipped_json() + fields
        self._outbox.push(self._format.message("gap", str(self.served.position), fields))
        self._send_snapshot()

    def _report_lag(self) -> bytes:
        self._sent_offsets = self._safe_offsets
        limits = self.served.table.ring.capacity, self._replay.limit
        report = self._lag.report(self._waiting(), self._thinning.pace.when_slow, *limits)
        fields = self._thinning.skipped_json() + report
        return self._format.message("lag", str(self.position), fields)

    def _waiting(self) -> Waiting:
        self._skip()
        return waiting_changes(self.served.table.ring, self._cursor, self._encoding)

    def _fail(self, error: MillstreamError) -> None:
        """End with an error: without the rows, changes to them mean nothing."""
        fields = b'"title":"Bad Request","detail":%b' % encode(str(error))
        self._outbox.push(self._format.message("error", str(self.served.position), fields))
        self._failed = True
        self.served.unsubscribe(self._wake)

    def _begin(self, after: Start | None) -> None:
        if after is None:
            self._send_snapshot()
        elif isinstance(after, StartTime):
            self._from_time = True
            self._outbox.start(partial(self._begin_at_time, after))
        else:
            try:
                self._offsets = self.served.offsets_at(after)
            except PositionUnavailable as reason:
                self._gap(after, str(reason))
            else:
                self._resume()

    async def _begin_at_time(self, after: StartTime) -> None:
        try:
            self._offsets = await self._replay.since(self.served, after)
        except LogError as error:
            _log.warning("%s", error)
            self._gap(self.position, "the log could not be read")
            return
        self._resume()

    def _resume(self) -> None:
        """Continue from the client's position, in the ring or in the log."""
        table = self.served.table
        if not table.ring.holds(self._offsets):
            self._outbox.start(self._read_log)
            return
        ring, self._cursor = table.ring, table.ring.find(self._offsets)
        # Another server, which gave the position, may have read the partitions in another order.
        # Some of our next changes are then ones that the client has seen.
        following = ring[self._cursor].offsets if self._cursor < ring.end else table.offsets
        self._ahead = not covers(following, self._offsets)
        if not covers(table.offsets, self._offsets):
            self._outbox.start(partial(self._check_end, self.position))

    def _leave_ring(self) -> None:
        """Continue although the ring no longer has the next change."""
        ring = self.served.table.ring
        if not self._thinning.pace.conflates:
            self._outbox.start(self._read_log)
        elif self._thinning.drops:
            self._thinning.skip("sample", ring.start - self._cursor)
            self._cursor, self._offsets = ring.start, highest(self._offsets, ring.floor)
            self._turns.again()
        else:
            # The newest rows are wanted, not every step to them.
            self._gap(self.position, "too many changes waited")

    def _restart(self, reason: str) -> None:
        self._outbox.clear()
        asked = self.position
        self._epoch, self._restarts = self.served.epoch, self.served.restarts
        self._thinning.forget_held()
        try:
            self._use(self._selection.encoding(self.served))
        except MillstreamError:  # a filter that no longer fits matches no row
            self._use(self.served.empty_encoding())
        try:
            self._thinning.pace.check(
                self.served
            )  # the view may be one now whose changes are added up
        except QueryError as error:
            self._fail(error)
            return
        self._gap(asked, reason)

    async def _read_log(self) -> None:
        """Send changes that are no longer in the ring from Kafka, as fast as the client reads."""
        asked, floor = self.position, self.served.table.ring.floor
        changes = self._replay.changes(
            self.served, self._offsets, self._encoding, unlimited=self._from_time
        )
        try:
            end = time.monotonic() + _TURN_SECONDS
            async for change in changes:
                self._offsets = highest(self._offsets, change.offsets)
                body = self._encoding.body(change)
                if time.monotonic() > end:
                    await asyncio.sleep(0)
                    end = time.monotonic() + _TURN_SECONDS
                if body is not None:
                    message = self._format.change(
                        self._thinning.skipped_json() + body, self._position_text(self._offsets)
                    )
                    self._outbox.push(message, is_change=True)
                    if len(self._outbox) >= _MAX_PENDING:
                        await self._outbox.wait_until_taken()
        except PositionUnavailable as reason:
            self._gap(asked, str(reason))
            return
        except LogError as error:
            _log.warning("%s", error)
            self._gap(asked, "the log could not be read")
            return
        # The last offsets before the ring may be no records, but the end of a transaction.
        self._offsets = highest(self._offsets, floor)
        self._resume()

    async def _check_end(self, asked: Position) -> None:
        """Send a gap if the position is beyond the log's end: the log has lost its last records."""
        if await self._replay.is_beyond_end(self.served, self._offsets):
            self._gap(asked, "the position is beyond the end of the log")

    def _send_snapshot(self) -> None:
        self._thinning.forget_held()  # they are in the rows
        if self.served.sends_full_history and self._limit is None:
            self._outbox.start(self._send_full_history)
        elif self.served.is_expensive(self._encoding):
            self._outbox.start(self._send_pages)
        else:
            snapshot = self._take_snapshot()
            if (page := snapshot.whole()) is None:
                self._outbox.start(self._send_pages)
                return
            self._push_page(snapshot.position, page)

    def _take_snapshot(self) -> Snapshot:
        """The rows now; changes after them follow."""
        self._move_to_end()
        return Snapshot(self.served, self._encoding, self._limit)

    def _move_to_end(self) -> None:
        table = self.served.table
        self._cursor, self._ahead = table.ring.end, False
        self._offsets = self._sent_offsets = table.offsets

    async def _send_pages(self) -> None:
        """Send a snapshot page by page, when no other one of this client is sent."""
        async with self._snapshot_lock:
            snapshot = self._take_snapshot()
            try:
                async for page in snapshot.pages():
                    self._push_page(snapshot.position, page)
                    await self._outbox.wait_until_taken()
            except QueryError as error:
                self._fail(error)

    async def _send_full_history(self) -> None:
        """Send an empty snapshot at the log's first position, then each record as a change."""
        self._offsets, self._ahead = await self._replay.first(self.served), False
        self._sent_offsets = self._offsets
        page = SnapshotPage(self.served.watermark_json, name_json(self.served), 1, True, b"[]")
        self._push_page(str(self.position), page)
        self._resume()

    def _push_page(self, position: str, page: SnapshotPage) -> None:
        head = self._thinning.skipped_json() + page.head
        self._outbox.push(self._format.snapshot(position, page._replace(head=head)))

    def _can_compare(self) -> bool:
        """Whether the client has exactly the rows of its filter at the cursor."""
        ring, keyed = self.served.table.ring, self.served.table.keyed
        is_settled = not (self.is_busy or self._ahead or self._thinning.held_since)
        return keyed and is_settled and self._limit is None and self._cursor >= ring.start

    async def _send_difference(self, old: Encoding) -> None:
        """Send rows that come into sight, and deletes of those that leave it."""
        served = self.served
        async with self._snapshot_lock:
            if self._cursor < served.table.ring.start:
                self._outbox.start(self._send_pages)
                return
            changed = rows_before(served.table.ring, self._cursor)
            difference = Difference(
                served.rows_now(), changed, old, self._encoding, served.deadline
            )
            self._move_to_end()
            try:
                while bodies := await asyncio.to_thread(difference.next, served.page_bytes):
                    for body in bodies:
                        self._outbox.push(
                            self._format.change(body, self._position_text(self._offsets))
                        )
                    await self._outbox.wait_until_taken()
            except QueryError as error:
                self._fail(error)
