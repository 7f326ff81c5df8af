"""One client's subscription to a live query."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from millstream.errors import QueryError
from millstream.serve.queries.live_query import LiveError, LiveQuery
from millstream.serve.queries.query_result import QueryResult, ResultChange
from millstream.serve.views.encoding import MessageFormat, encode, iso_time

_NO_HISTORY = "the result has changed, and a live query keeps no history"


class LiveSubscription:
    """Messages for one client: a snapshot of the result, then what turns it into the newest one.

    Nothing is queued for a slow client. It gets the difference between the result that it has and
    the newest one; those in between are left out.
    """

    def __init__(
        self,
        query: LiveQuery,
        message_format: MessageFormat,
        wake: Callable[[], None],
        *,
        after: str | None = None,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        self.wake = wake
        self.is_paused = False
        self._query = query
        self._format = message_format
        self._closed = closed
        self._after = after
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
    def kind(self) -> str:
        return "query"

    @property
    def name(self) -> str:
        return self._query.question.name

    @property
    def position(self) -> str:
        """The position of the result that the client has."""
        return "" if self._has is None else self._has.position

    @property
    def watermark_json(self) -> bytes:
        return encode(iso_time(self._query.watermark))

    @property
    def behind(self) -> int:
        """Changes that the client has not been sent yet, as far as they are known."""
        is_newest = self._has is self._query.result
        return len(self._changes) or int(not is_newest)

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
        if self._has is None:
            return self._start(newest)
        self._target = newest
        self._changes.extend(newest.changes_from(self._has))
        if not self._changes:  # another evaluation with an equal result
            self._has, self._target = newest, None
            return None
        return self._next_message()

    def _start(self, newest: QueryResult) -> bytes | None:
        """A snapshot; before it a gap, if the client has another result."""
        if self._after is not None and self._after != newest.position:
            fields = b'"asked":%b,"reason":%b' % (encode(self._after), encode(_NO_HISTORY))
            self._after = None
            return self._format.message("gap", newest.position, fields)
        is_resumed, self._after, self._has = self._after is not None, None, newest
        return None if is_resumed else self._snapshot(newest)

    def _snapshot(self, result: QueryResult) -> bytes:
        fields = b'"watermark":%b,"query":%b,"total":%d,"truncated":false,"rows":%b' % (
            self.watermark_json,
            encode(self.name or None),
            len(result.rows),
            result.encode_rows(),
        )
        return self._format.message("snapshot", result.position, fields)

    def _error_message(self, error: LiveError) -> bytes:
        fields = b'"title":%b,"detail":%b,"final":%b' % (
            encode(error.title),
            encode(error.detail),
            encode(error.is_final),
        )
        return self._format.message("error", self.position, fields)
