"""One client's subscription to a live query."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from millstream.errors import QueryError
from millstream.serve.connections import SubscriptionReport
from millstream.serve.queries.live_query import LiveError, LiveQuery
from millstream.serve.queries.query_result import QueryResult, ResultChange
from millstream.serve.views.encoding import MessageFormat, SnapshotPage, encode, iso_time
from millstream.web.auth.caller import Caller

_NO_HISTORY = "the result has changed since, and a live query keeps no history"


@dataclass(frozen=True, slots=True)
class LiveSubscriber:
    """The client's side of a subscription."""

    caller: Caller
    message_format: MessageFormat
    wake: Callable[[], None]
    after: str | None = None  # the position of the result that the client has


class LiveSubscription:
    """Messages for one client: a snapshot of the result, then what turns it into the newest one.

    Nothing is queued for a slow client. It gets the difference between the result that it has and
    the newest one; those in between are left out.
    """

    def __init__(
        self,
        query: LiveQuery,
        subscriber: LiveSubscriber,
        *,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        self.wake = subscriber.wake
        self.is_paused = False
        self._query = query
        self._format = subscriber.message_format
        self._closed = closed
        self._after = subscriber.after
        self._has: QueryResult | None = None
        self._target: QueryResult | None = None  # while changes that lead to it are being sent
        self._changes: deque[ResultChange] = deque()
        self._error: LiveError | None = None  # that the client was sent
        self._is_closed = False
        query.add(self)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._query.discard(self)
            self._closed()

    def holds(self) -> tuple[QueryResult, ...]:
        return tuple(each for each in (self._has, self._target) if each is not None)

    def forget(self) -> None:
        self._has = self._target = None
        self._changes.clear()

    @property
    def report(self) -> SubscriptionReport:
        is_newest = self._has is self._query.result
        behind = len(self._changes) or int(not is_newest)
        return SubscriptionReport("query", self._query.question.name or "sql", behind=behind)

    @property
    def position(self) -> str:
        """The position of the result that the client has."""
        return "" if self._has is None else self._has.position

    @property
    def watermark_json(self) -> bytes:
        return encode(iso_time(self._query.watermark))

    @property
    def skipped(self) -> int:
        """0: the newest result is complete, whatever was left out before it."""
        return 0

    @property
    def has_more(self) -> bool:
        return False

    @property
    def has_pending(self) -> bool:
        """Whether a part of a difference has been sent."""
        return bool(self._changes)

    @property
    def is_busy(self) -> bool:
        """Whether messages will come without a change of a view."""
        is_evaluating = self._query.result is None and self._query.error is None
        return is_evaluating or bool(self._changes)

    def refresh(self) -> bytes | None:
        """None: the client's position is always that of its newest message."""
        return None

    def mark_slow(self) -> None:
        """Nothing: nothing waits for a slow client."""

    def is_too_slow(self, full_seconds: float) -> bool:
        return False

    def update(self, fields: Mapping[str, object]) -> None:
        raise QueryError(
            "a subscription to a query cannot be changed",
            remedy="subscribe again with the same id and other params",
        )

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def next_messages(self, size: int = 65_536) -> list[bytes]:
        """The next messages, about `size` bytes of them; empty if there are none now."""
        messages: list[bytes] = []
        while size > 0 and not self.is_paused:
            message = self._next_message()
            if message is None:
                break
            messages.append(message)
            size -= len(message)
        return messages

    def _next_message(self) -> bytes | None:
        if self._changes:
            change = self._changes.popleft()
            if not self._changes:
                self._has, self._target = self._target, None
            return self._format.change(*change)
        if self._error != self._query.error:
            self._error = self._query.error
            if self._error is not None:
                return self._error_message(self._error)
        newest = self._query.result
        if newest is None or newest is self._has:
            return None
        if self._has is None and (message := self._start(newest)) is not None:
            return message
        if self._has is None or self._has is newest:
            return None
        self._target = newest
        self._changes.extend(newest.changes_from(self._has))
        if not self._changes:  # another evaluation with an equal result
            self._has, self._target = newest, None
            return None
        return self._next_message()

    def _start(self, newest: QueryResult) -> bytes | None:
        """A snapshot, and a gap before it if the client has an unknown result; None: it resumes."""
        after, self._after = self._after, None
        if after is None:
            self._has = newest
            return self._snapshot(newest)
        self._has = self._query.find(after)
        if self._has is not None:
            return None
        fields = b'"asked":%b,"reason":%b' % (encode(after), encode(_NO_HISTORY))
        return self._format.message("gap", newest.position, fields)

    def _snapshot(self, result: QueryResult) -> bytes:
        name, total = encode(self._query.question.name or None), len(result.rows)
        head = b'"query":%b,"total":%d,"truncated":false' % (name, total)
        page = SnapshotPage(self.watermark_json, head, 1, True, result.encode_rows())
        return self._format.snapshot(result.position, page)

    def _error_message(self, error: LiveError) -> bytes:
        fields = b'"title":%b,"detail":%b,"final":%b' % (
            encode(error.title),
            encode(error.detail),
            encode(error.is_final),
        )
        return self._format.message("error", self.position, fields)
