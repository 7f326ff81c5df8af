"""SQL over all views, in a process of its own: what a query does to it, it cannot do to the server.

A query can ask for more memory than DuckDB's limit accounts for, or for time that an interrupt does
not reach. The process has a hard limit of memory, is killed when it does not answer, and another
one is filled from the views, which are the truth. Memory that an ended query took does not all come
back, so a process in which a query had too little memory or time is used no longer: the next query
must not fail for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import msgspec

from millstream.errors import LogError, QueryError
from millstream.store.sql.worker import Overrun, Worker
from millstream.store.views.ring import Change, Row
from millstream.store.views.table import Table
from millstream.values.view_description import ViewColumn

_log = logging.getLogger(__name__)
_FOLD_SECONDS = 0.1
_ASKED_SECONDS = 30.0
_FILL_SECONDS = 120.0  # for one message, and the start of the process on a busy machine
_WAITING = 32  # queries
_CHUNK, _CHUNK_BYTES = 5_000, 4 << 20  # rows in one message, and how large it gets, about


class Mirrored(Protocol):
    """A view, as far as the mirror needs it."""

    name: str
    columns: tuple[ViewColumn, ...]
    table: Table


@dataclass(slots=True)
class _Pending:
    """What the process's table lacks of a view. The rows themselves are read from the view."""

    view: Mirrored
    defined: bool = False  # the process has a table, which lacks only what is noted here
    broken: bool = False  # the process could not make a table of this view
    keys: set[str] = field(default_factory=set)
    appended: int = 0

    def note(self, changes: list[Change]) -> None:
        self.keys.update(change.key for change in changes if change.key is not None)
        self.appended += sum(change.key is None for change in changes)

    def take(self) -> list[tuple[str, Row | None]]:
        """The rows to be folded now, of all at one moment; after that nothing is lacking."""
        table = self.view.table
        rows: list[tuple[str, Row | None]]
        if not table.keyed:
            count = self.appended if self.defined else len(table.newest)
            rows = [("", row) for row in islice(reversed(table.newest), count)]
            rows.reverse()
        elif self.defined:
            rows = [(key, table.rows.get(key)) for key in self.keys]
        else:
            rows = [*table.rows.items()]
        self.defined, self.keys, self.appended = True, set(), 0
        return rows


class Busy(LogError):
    """Too many queries at once; the same one can be answered later."""


class Sql:
    """Answers queries. Belongs to the event loop; nothing here blocks it."""

    def __init__(
        self, *, memory: str, seconds: float, newest: int, max_bytes: int = 16 << 20
    ) -> None:
        self._memory = memory
        self._seconds = seconds
        self._newest = newest
        self._most_bytes = max_bytes  # of an answer
        self._views: dict[str, _Pending] = {}
        self._worker: Worker | None = None
        self._workers: set[Worker] = set()  # with those that are ending
        self._folding = asyncio.Lock()
        self._slots = asyncio.Semaphore(2)
        self._turn = asyncio.Lock()  # of the one that waits for both slots
        self._waiting = 0
        self._asked_at = 0.0

    def add(self, view: Mirrored) -> None:
        """Mirror this view from now on."""
        self._views[view.name] = _Pending(view)

    def changed(self, view: Mirrored, changes: list[Change]) -> None:
        """Note what the next folding must do; an empty list says that the view starts over."""
        pending = self._views[view.name]
        if not changes:
            pending.defined = pending.broken = False
        if pending.defined:  # else it will be filled from the view itself
            pending.note(changes)

    async def run(self) -> None:
        """Fold changes in every tenth of a second, once someone has asked; until cancelled."""
        try:
            while True:
                await asyncio.sleep(_FOLD_SECONDS)
                # Who asked lately will ask again; for nobody the folding is not worth the work.
                asked = asyncio.get_running_loop().time() - self._asked_at < _ASKED_SECONDS
                if self._worker is not None and asked:
                    with contextlib.suppress(LogError):
                        await self._fold()
        finally:
            await self.stop()

    async def query(self, sql: str, limit: int) -> bytes:
        """The answer as JSON; QueryError if the query is wrong or too much."""
        if self._waiting >= _WAITING:
            raise Busy("too many queries are running", remedy="try again in a moment")
        self._waiting += 1
        self._asked_at = asyncio.get_running_loop().time()
        try:
            with contextlib.suppress(Overrun):
                async with self._slots:
                    return await self._answer(sql, limit)
            # Another query may have taken the memory or ended the process. Alone, this one fails
            # only for what it needs itself.
            async with self._all_slots():
                return await self._answer(sql, limit, final=True)
        finally:
            self._waiting -= 1

    @property
    def pid(self) -> int | None:
        return None if self._worker is None else self._worker.pid

    async def stop(self) -> None:
        self._worker = None
        await asyncio.gather(*(worker.stop() for worker in self._workers))
        self._workers.clear()

    @contextlib.asynccontextmanager
    async def _all_slots(self) -> AsyncIterator[None]:
        async with self._turn, self._slots, self._slots:
            yield

    async def _answer(self, sql: str, limit: int, *, final: bool = False) -> bytes:
        """The answer; Overrun, unless `final`, if it failed for what may not be its own fault."""
        worker = await self._fold()
        with worker.running() as run:
            try:
                answer = await worker.query(sql, limit, self._seconds, self._most_bytes)
            except TimeoutError:
                answer = _failure("time", f"the query took longer than {self._seconds:g} s")
            except Overrun:  # or the process had ended before, and we had not noticed
                answer, run.alone = _failure("memory", "the query needs too much memory"), False
            failure = answer.get("failure")
            if failure is not None and failure["reason"] in ("time", "memory"):
                self._retire(worker)
                if failure["reason"] == "memory" and not run.alone and not final:
                    raise Overrun(failure["message"])
        if failure is not None:
            raise QueryError(failure["message"], remedy=failure["remedy"])
        return bytes(answer["result"])

    async def _fold(self) -> Worker:
        """The process, with all in it that the views hold now."""
        async with self._folding:
            worker = self._worker
            if worker is None or worker.ended:
                worker = await self._start()
            try:
                for pending in self._views.values():
                    await self._fold_view(worker, pending)
            except TimeoutError:
                self._retire(worker)
                raise Overrun(
                    f"the SQL process did not take in the views within {_FILL_SECONDS:g} s",
                    remedy="try again when the machine is less busy",
                ) from None
            except Overrun:
                self._retire(worker)
                raise Overrun(
                    f"the views do not fit into the SQL process, which has {self._memory}",
                    remedy="raise serve.query_memory, or try again",
                ) from None
            return worker

    async def _fold_view(self, worker: Worker, pending: _Pending) -> None:
        try:
            for message in self._messages(pending):
                failure = (await worker.ask(message, _FILL_SECONDS)).get("failure")
                if failure is not None and failure["reason"] == "memory":
                    raise Overrun(failure["message"])
                if failure is not None:
                    _log.error("%s", failure["message"])
                    pending.broken = True
                    return
        except BaseException:
            pending.defined = False  # who knows how much of it arrived
            raise

    def _messages(self, pending: _Pending) -> Iterator[dict[str, Any]]:
        view = pending.view
        if not view.columns or pending.broken:
            return
        name, fresh = view.name, not pending.defined
        columns = [{"name": c.name, "type": c.type} for c in view.columns]
        keyed, rows = view.table.keyed, pending.take()
        if fresh:
            yield {"op": "define", "name": name, "columns": columns, "keyed": keyed}
        elif not rows:
            return
        for keys, texts, last in _chunks(rows):
            fold = {"op": "fold", "name": name, "keys": keys, "rows": texts}
            yield {**fold, "newest": self._newest, "last": last}

    async def _start(self) -> Worker:
        worker = self._worker = await Worker.start(self._memory)
        self._workers = {worker, *(held for held in self._workers if not held.ended)}
        for pending in self._views.values():
            pending.defined = pending.broken = False
        return worker

    def _retire(self, worker: Worker) -> None:
        if self._worker is worker:
            self._worker = None
            _log.warning("the SQL process is ended; another one starts with the next query")
        worker.retire()


def _chunks(
    rows: list[tuple[str, Row | None]],
) -> Iterator[tuple[list[str], list[str | None], bool]]:
    """Keys and rows as JSON, some at a time, and whether they are the last."""
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


def _failure(reason: str, message: str) -> dict[str, Any]:
    return {"failure": {"reason": reason, "message": message, "remedy": "ask for less"}}


_encode = msgspec.json.Encoder(decimal_format="number").encode
