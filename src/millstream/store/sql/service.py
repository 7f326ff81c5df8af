"""SQL over all views. Queries run in a process of their own, so that they cannot harm the server.

A query can use memory that DuckDB's limit does not count, and can run on after an interrupt. So the
process has a hard memory limit, and is killed if it does not answer. Another one is then filled
from the views. A query does not free all of its memory, so a process in which a query ran out of
memory or time is replaced: the next query must not fail because of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import msgspec

from millstream.errors import LogError, QueryError
from millstream.store.sql.process import SqlProcess, SqlProcessFailed
from millstream.store.sql.query_check import CheckedQuery
from millstream.store.views.ring import Row, ViewChange
from millstream.store.views.table import ViewTable
from millstream.values.view_description import ViewColumn
from millstream.values.visibility import Visibility

_log = logging.getLogger(__name__)
_UPDATE_SECONDS = 0.1
_IDLE_SECONDS = 30.0  # without queries; after that the tables are not updated
_FILL_SECONDS = 120.0  # for one message, and for the start of the process on a busy machine
_MAX_WAITING = 32  # queries
_CHUNK, _CHUNK_BYTES = 5_000, 4 << 20  # rows in one message, and about its size


class QueryableView(Protocol):
    """A view, as far as SQL needs it."""

    name: str
    columns: tuple[ViewColumn, ...]
    table: ViewTable


@dataclass(slots=True)
class _PendingChanges:
    """Changes of a view that its SQL table lacks. The rows themselves are read from the view."""

    view: QueryableView
    exists: bool = False  # the process has a table, which lacks only these changes
    broken: bool = False  # the process could not create the table
    keys: set[str] = field(default_factory=set)
    appended: int = 0

    def add(self, changes: list[ViewChange]) -> None:
        self.keys.update(change.key for change in changes if change.key is not None)
        self.appended += sum(change.key is None for change in changes)

    def drain(self) -> list[tuple[str, Row | None]]:
        """The rows that the table lacks now; after that, no change is pending."""
        table = self.view.table
        rows: list[tuple[str, Row | None]]
        if not table.keyed:
            count = self.appended if self.exists else len(table.newest)
            rows = [("", row) for row in islice(reversed(table.newest), count)]
            rows.reverse()
        elif self.exists:
            rows = [(key, table.rows.get(key)) for key in self.keys]
        else:
            rows = [*table.rows.items()]
        self.exists, self.keys, self.appended = True, set(), 0
        return rows


@dataclass(frozen=True, slots=True)
class _Question:
    """What a query asks for."""

    sql: str
    limit: int
    parameters: Mapping[str, Any]
    visible: Mapping[str, Visibility] | None


class TooManyQueries(LogError):
    """Too many queries at once; the same one can be answered later."""


class QueryFailedForNow(QueryError):
    """A query lacked time or memory, or failed at a value; later it may be answered."""

    retry = True


@dataclass(frozen=True, slots=True)
class SqlAnswer:
    """The answer to a query, and what its syntax tells."""

    body: bytes  # JSON
    checked: CheckedQuery


class SqlService:
    """Answers queries. Belongs to the event loop; nothing here blocks it."""

    def __init__(
        self, *, memory: str, seconds: float, newest: int, max_bytes: int = 16 << 20
    ) -> None:
        self._memory = memory
        self._seconds = seconds
        self._newest = newest
        self._max_bytes = max_bytes  # of an answer
        self._views: dict[str, _PendingChanges] = {}
        self._process: SqlProcess | None = None
        self._processes: set[SqlProcess] = set()  # including those that are ending
        self._updating = asyncio.Lock()
        self._slots = asyncio.Semaphore(2)
        self._exclusive = asyncio.Lock()  # held by the query that waits for both slots
        self._waiting = 0
        self._queried_at = 0.0

    def add(self, view: QueryableView) -> None:
        """Make this view available to queries."""
        self._views[view.name] = _PendingChanges(view)

    def changed(self, view: QueryableView, changes: list[ViewChange]) -> None:
        """Note changes of a view for the next update; an empty list means that it starts again."""
        pending = self._views[view.name]
        if not changes:
            pending.exists = pending.broken = False
        if pending.exists:  # else the table will be filled from the view
            pending.add(changes)

    async def run(self) -> None:
        """Update the tables while there are queries; runs until cancelled."""
        try:
            while True:
                await asyncio.sleep(_UPDATE_SECONDS)
                idle = asyncio.get_running_loop().time() - self._queried_at
                if self._process is not None and idle < _IDLE_SECONDS:
                    with contextlib.suppress(LogError):
                        await self._update()
        finally:
            await self.stop()

    async def query(
        self, sql: str, limit: int, *, visible: Mapping[str, Visibility] | None = None
    ) -> bytes:
        """The answer as JSON; QueryError if the query is wrong or needs too much.

        `visible`: the views that exist for the caller, and what it sees of each. None: everything.
        """
        return (await self.answer(sql, limit, visible=visible)).body

    async def answer(
        self,
        sql: str,
        limit: int,
        parameters: Mapping[str, Any] | None = None,
        *,
        visible: Mapping[str, Visibility] | None = None,
    ) -> SqlAnswer:
        """The answer, with what the query's syntax tells; QueryError as `query` raises it.

        `parameters` are values for `$name`. DuckDB gets them apart from the text.
        """
        if self._waiting >= _MAX_WAITING:
            raise TooManyQueries("too many queries are running", remedy="try again in a moment")
        self._waiting += 1
        self._queried_at = asyncio.get_running_loop().time()
        question = _Question(sql, limit, parameters or {}, visible)
        try:
            with contextlib.suppress(SqlProcessFailed):
                async with self._slots:
                    return await self._answer(question)
            # Another query may have used the memory or ended the process. Alone, this query fails
            # only because of itself.
            async with self._all_slots():
                return await self._answer(question, final=True)
        finally:
            self._waiting -= 1

    async def describe(
        self, queries: Mapping[str, tuple[str, Mapping[str, Any]]]
    ) -> dict[str, SqlAnswer | QueryError]:
        """The answer to each query (SQL and parameters) over empty views, or why it has none.

        Uses a process of its own, so that the rows are not copied for it.
        """
        process = await SqlProcess.start(self._memory)
        try:
            for held in self._views.values():
                for message in self._empty_table(held.view):
                    await process.request(message, _FILL_SECONDS)
            found: dict[str, SqlAnswer | QueryError] = {}
            for name, (sql, parameters) in queries.items():
                limits = 0, self._seconds, self._max_bytes
                answer = await process.query(sql, *limits, parameters, None)
                failure = answer.get("failure")
                found[name] = _read_answer(answer) if failure is None else _error(failure)
            return found
        except TimeoutError:
            raise SqlProcessFailed("the SQL process did not answer", remedy="try again") from None
        finally:
            await process.stop()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def stop(self) -> None:
        self._process = None
        await asyncio.gather(*(process.stop() for process in self._processes))
        self._processes.clear()

    @contextlib.asynccontextmanager
    async def _all_slots(self) -> AsyncIterator[None]:
        async with self._exclusive, self._slots, self._slots:
            yield

    async def _answer(self, question: _Question, *, final: bool = False) -> SqlAnswer:
        """The answer; SqlProcessFailed, unless `final`, if another query may be the cause."""
        process = await self._update()
        with process.running() as run:
            try:
                answer = await process.query(
                    question.sql,
                    question.limit,
                    self._seconds,
                    self._max_bytes,
                    question.parameters,
                    question.visible,
                )
            except TimeoutError:
                answer = _failure("time", f"the query took longer than {self._seconds:g} s")
            except SqlProcessFailed:  # perhaps it had ended before the query
                answer, run.alone = _failure("memory", "the query needs too much memory"), False
            failure = answer.get("failure")
            if failure is not None and failure["reason"] in ("time", "memory"):
                self._retire(process)
                if failure["reason"] == "memory" and not run.alone and not final:
                    raise SqlProcessFailed(failure["message"])
        if failure is not None:
            raise _error(failure)
        return _read_answer(answer)

    async def _update(self) -> SqlProcess:
        """The process, with tables that are up to date."""
        async with self._updating:
            process = self._process
            if process is None or process.ended:
                process = await self._start()
            try:
                for pending in self._views.values():
                    await self._update_view(process, pending)
            except TimeoutError:
                self._retire(process)
                raise SqlProcessFailed(
                    f"the SQL process did not read the views within {_FILL_SECONDS:g} s",
                    remedy="try again when the machine is less busy",
                ) from None
            except SqlProcessFailed:
                self._retire(process)
                raise SqlProcessFailed(
                    f"the views do not fit into the SQL process, which has {self._memory}",
                    remedy="raise serve.query_memory, or try again",
                ) from None
            return process

    async def _update_view(self, process: SqlProcess, pending: _PendingChanges) -> None:
        try:
            for message in self._messages(pending):
                failure = (await process.request(message, _FILL_SECONDS)).get("failure")
                if failure is not None and failure["reason"] == "memory":
                    raise SqlProcessFailed(failure["message"])
                if failure is not None:
                    _log.error("%s", failure["message"])
                    pending.broken = True
                    return
        except BaseException:
            pending.exists = False  # an unknown part of it arrived
            raise

    def _messages(self, pending: _PendingChanges) -> Iterator[dict[str, Any]]:
        view = pending.view
        if not view.columns or pending.broken:
            return
        name, is_new = view.name, not pending.exists
        columns = [{"name": c.name, "type": c.type} for c in view.columns]
        keyed, rows = view.table.keyed, pending.drain()
        if is_new:
            yield {"op": "create", "name": name, "columns": columns, "keyed": keyed}
        elif not rows:
            return
        for keys, texts, last in _chunks(rows):
            update = {"op": "update", "name": name, "keys": keys, "rows": texts}
            yield {**update, "newest": self._newest, "last": last}

    def _empty_table(self, view: QueryableView) -> Iterator[dict[str, Any]]:
        """Messages that create a view's table without rows; none if it is not described yet."""
        if view.columns:
            columns = [{"name": c.name, "type": c.type} for c in view.columns]
            keyed = view.table.keyed
            yield {"op": "create", "name": view.name, "columns": columns, "keyed": keyed}
            update = {"op": "update", "name": view.name, "keys": [], "rows": []}
            yield {**update, "newest": self._newest, "last": True}

    async def _start(self) -> SqlProcess:
        process = self._process = await SqlProcess.start(self._memory)
        self._processes = {process, *(held for held in self._processes if not held.ended)}
        for pending in self._views.values():
            pending.exists = pending.broken = False
        return process

    def _retire(self, process: SqlProcess) -> None:
        if self._process is process:
            self._process = None
            _log.warning("ended the SQL process; the next query starts another one")
        process.retire()


def _chunks(
    rows: list[tuple[str, Row | None]],
) -> Iterator[tuple[list[str], list[str | None], bool]]:
    """Keys and rows as JSON, in chunks, and whether it is the last chunk."""
    keys: list[str] = []
    texts: list[str | None] = []
    size = 0
    for number, (key, row) in enumerate(rows, 1):
        text = None if row is None else _encode(row).decode()
        keys.append(key)
        texts.append(text)
        size += len(text or "")
        if number < len(rows) and (len(keys) >= _CHUNK or size >= _CHUNK_BYTES):
            yield keys, texts, False
            keys, texts, size = [], [], 0
    yield keys, texts, True


def _read_answer(answer: dict[str, Any]) -> SqlAnswer:
    checked = msgspec.convert(answer["checked"], CheckedQuery)
    return SqlAnswer(bytes(answer["result"]), checked)


def _error(failure: dict[str, str]) -> QueryError:
    kind = QueryError if failure["reason"] == "error" else QueryFailedForNow
    return kind(failure["message"], remedy=failure["remedy"])


def _failure(reason: str, message: str) -> dict[str, Any]:
    return {"failure": {"reason": reason, "message": message, "remedy": "ask for less"}}


_encode = msgspec.json.Encoder(decimal_format="number").encode
