"""A query that is evaluated again when a view under it changes, once for all its subscribers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from millstream.errors import LogError, MillstreamError, QueryError
from millstream.pipeline.model import ParameterValue
from millstream.serve.queries.named_query import conceal
from millstream.serve.queries.query_result import QueryResult, read_result
from millstream.serve.settings import ServeSettings
from millstream.serve.views.encoding import encode
from millstream.serve.views.served_view import ServedView
from millstream.store.sql.service import SqlService
from millstream.store.views.ring import ViewChange
from millstream.values.visibility import Visibility
from millstream.web.problem import RETRY, Problem

_log = logging.getLogger(__name__)
# After an evaluation, at least so many times its duration passes before the next one, so that a
# slow query leaves the SQL process to others.
_REST = 4.0
_VOLATILE_SECONDS = 1.0  # between evaluations of a query that depends on the time
_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 1.0, 60.0
_LINGER_SECONDS = 10.0  # a result is held that long for clients that poll or reconnect
_RECENT_RESULTS = 2  # are held for clients that poll or reconnect
_MAX_RESULTS = 8  # including those that slow clients have; clients of older ones start again


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What a live query asks."""

    sql: str
    values: Mapping[str, ParameterValue] = field(default_factory=dict)
    key: tuple[str, ...] | None = None
    name: str = ""  # of the named query; empty: it is a client's own SQL
    visible: Mapping[str, Visibility] | None = None  # the views that it may read; None: all

    @property
    def identity(self) -> bytes:
        """Subscribers whose questions have the same identity share an evaluation."""
        # JSON, because 1, 1.0 and True are equal in Python.
        seen = (
            None
            if self.visible is None
            else sorted(
                (name, each.rows, sorted(each.hidden)) for name, each in self.visible.items()
            )
        )
        return encode([self.name, self.sql, sorted(self.values.items()), self.key, seen])


@dataclass(frozen=True, slots=True)
class LiveError:
    """Why there is no newer result."""

    title: str  # the words of an HTTP status
    detail: str
    is_final: bool  # it cannot pass


class Follower(Protocol):
    """A subscriber, as far as its query needs it."""

    def holds(self) -> tuple[QueryResult, ...]:
        """The results that its client has, or is being sent."""
        ...

    def forget(self) -> None:
        """Hold no result; the client gets the newest one as a whole."""
        ...

    def wake(self) -> None:
        """Send the client what it lacks."""
        ...


class LiveQuery:
    """Evaluates one question while it has followers. Belongs to the event loop."""

    def __init__(
        self,
        question: Question,
        sql: SqlService,
        views: Mapping[str, ServedView],
        settings: ServeSettings,
        turn: asyncio.Semaphore,
        released: Callable[[LiveQuery], None],
    ) -> None:
        self.question = question
        self.result: QueryResult | None = None
        self.error: LiveError | None = None
        self.evaluations = 0
        self._sql = sql
        self._all_views = views
        self._settings = settings
        self._turn = turn  # shared by all live queries: one evaluation at a time
        self._released = released  # called when the last follower has left
        self._followers: dict[Follower, None] = {}
        self._held: list[QueryResult] = []  # the newest last
        self._views: frozenset[str] = frozenset()  # under the query, once they are known
        self._evaluated: dict[str, object] = {}  # states of the views before the last evaluation
        self._is_volatile = False
        self._failures = 0  # in a row
        self._changed = asyncio.Event()  # there is a reason to evaluate
        self._left = asyncio.Event()  # there are no followers
        self._task: asyncio.Task[None] | None = None

    @property
    def is_followed(self) -> bool:
        return bool(self._followers)

    @property
    def watermark(self) -> int:
        """The lowest watermark of the views under the query; 0: unknown."""
        return min((self._all_views[name].watermark for name in self._views), default=0)

    def find(self, position: str) -> QueryResult | None:
        """The result at a position, if it is still held."""
        return next((result for result in self._held if result.position == position), None)

    def add(self, follower: Follower) -> None:
        self._followers[follower] = None
        self._left.clear()
        if self._task is None:
            if self.error is not None or self._is_volatile or self._is_outdated():
                self.result = self.error = None
                self._changed.set()
            self._task = asyncio.get_running_loop().create_task(self._run())

    def discard(self, follower: Follower) -> None:
        if follower in self._followers:
            del self._followers[follower]
            if not self._followers:
                self._end()

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _end(self) -> None:
        # The task ends by itself: an evaluation may be filling a table, which would be lost.
        self._held = self._held[-_RECENT_RESULTS:]
        self._left.set()
        self._changed.set()
        self._released(self)

    async def _run(self) -> None:
        self._listen()
        try:
            while self._followers:
                timeout = _VOLATILE_SECONDS if self._is_volatile else None
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), timeout)
                await self._rest(await self._evaluate())
        finally:
            self._stop_listening()
            self._task = None

    async def _rest(self, seconds: float) -> None:
        """Wait after an evaluation that took DuckDB so many seconds, unless the followers leave."""
        pause = max(self._settings.live_query_seconds, _REST * seconds)
        if self._failures:
            self._changed.set()
            pause = min(_FIRST_RETRY_SECONDS * 2 ** (self._failures - 1), _LAST_RETRY_SECONDS)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._left.wait(), pause)

    async def _evaluate(self) -> float:
        """Evaluate the query, and tell the followers; the seconds that DuckDB needed."""
        async with self._turn:
            if not self._followers:
                return 0.0
            self._changed.clear()
            states = {name: _state(view) for name, view in self._all_views.items()}
            question, settings = self.question, self._settings
            self.evaluations += 1
            try:
                answer = await self._sql.answer(
                    question.sql,
                    settings.live_query_rows,
                    question.values,
                    visible=question.visible,
                )
                limit, before = settings.live_query_bytes, self.result
                result = read_result(answer, question.key, limit, before)
            except (QueryError, LogError) as error:
                self._fail(error)
                return 0.0
        self._is_volatile, self._evaluated = answer.checked.volatile, states
        if answer.checked.views != self._views:
            self._stop_listening()
            self._views = answer.checked.views
            self._listen()
        if self._is_outdated():  # before we listened
            self._changed.set()
        self._publish(result)
        return result.seconds

    def _publish(self, result: QueryResult) -> None:
        failed, self.error, self._failures = self.error is not None, None, 0
        if self.result is not None and self.result.position == result.position and not failed:
            return
        self.result = result
        if failed:  # a whole result tells clients that the error has passed
            for follower in self._followers:
                follower.forget()
        self._limit_results(result)
        self._wake()

    def _limit_results(self, newest: QueryResult) -> None:
        """Let clients forget the oldest results, so that few have to be held."""
        holders = [(follower, follower.holds()) for follower in self._followers]
        in_use = {id(result) for _, held in holders for result in held}
        in_use |= {id(result) for result in self._held[1 - _RECENT_RESULTS :]}
        self._held = [result for result in self._held if id(result) in in_use]
        self._held.append(newest)
        known = {id(result) for result in self._held[-_MAX_RESULTS:]}
        for follower, held in holders:
            if any(id(result) not in known for result in held):
                follower.forget()
        self._held = self._held[-_MAX_RESULTS:]

    def _fail(self, error: MillstreamError) -> None:
        if isinstance(error, QueryError) and self.question.name:
            error = conceal(error, self.question.visible)
        title = "Service Unavailable" if isinstance(error, LogError) else "Bad Request"
        failure = LiveError(title, str(error), is_final=not error.retry)
        self._failures += 1
        if failure != self.error:
            self.error = failure
            self._wake()
        if failure.is_final:
            self._followers.clear()
            self._end()

    def _wake(self) -> None:
        for follower in list(self._followers):
            try:
                follower.wake()
            except Exception:  # one client's failure must not stop the others
                _log.exception("cannot send to a client of a live query")

    def _is_outdated(self) -> bool:
        """Whether the last evaluation, if there was one, may differ from another one now."""
        return not self._evaluated or any(
            _state(self._all_views[name]) != self._evaluated[name] for name in self._views
        )

    def _listen(self) -> None:
        for name in self._views:
            self._all_views[name].listeners.append(self._note)

    def _stop_listening(self) -> None:
        for name in self._views:
            listeners = self._all_views[name].listeners
            if self._note in listeners:
                listeners.remove(self._note)

    def _note(self, view: ServedView, changes: list[ViewChange]) -> None:
        self._changed.set()


def _state(view: ServedView) -> object:
    return view.restarts, view.columns, view.table.offsets


class LiveQueries:
    """All live queries of this server, by what they ask."""

    def __init__(
        self, sql: SqlService, views: Mapping[str, ServedView], settings: ServeSettings
    ) -> None:
        self._sql = sql
        self._views = views
        self._settings = settings
        self._turn = asyncio.Semaphore(1)
        self.own_sql: Counter[tuple[str, str]] = Counter()  # subscriptions to it, by caller
        self._queries: dict[bytes, LiveQuery] = {}
        self._past_evaluations = 0

    def __len__(self) -> int:
        return sum(query.is_followed for query in self._queries.values())

    @property
    def evaluations(self) -> int:
        """How often a live query was evaluated."""
        return self._past_evaluations + sum(each.evaluations for each in self._queries.values())

    def open(self, question: Question) -> LiveQuery:
        """The live query for a question; Problem 503 if there are too many others."""
        query = self._queries.get(question.identity)
        if query is None:
            if len(self) >= self._settings.live_queries:
                raise Problem(
                    503,
                    f"this server has {self._settings.live_queries} live queries already",
                    remedy="try again later, or raise serve.live_queries",
                    headers=[RETRY],
                )
            query = LiveQuery(
                question, self._sql, self._views, self._settings, self._turn, self._release
            )
            self._queries[question.identity] = query
        return query

    def stop(self) -> None:
        for query in self._queries.values():
            query.stop()

    def _release(self, query: LiveQuery) -> None:
        asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._drop, query)

    def _drop(self, query: LiveQuery) -> None:
        identity = query.question.identity
        if not query.is_followed and self._queries.get(identity) is query:
            self._past_evaluations += query.evaluations
            del self._queries[identity]
