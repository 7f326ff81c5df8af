"""SQL over all views, in a process of its own: what a query does to it, it cannot do to the server.

A query can ask for more memory than DuckDB's limit accounts for, or for time that an interrupt does
not reach. The process has a hard limit of memory, is killed when it does not answer, and is filled
anew from the views, which are the truth.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from millstream.audit import Column
from millstream.errors import LogError, QueryError
from millstream.store.ring import Change, Row
from millstream.store.table import Table

logger = logging.getLogger(__name__)
_FOLD_SECONDS = 0.1
_ASKED_SECONDS = 30.0
_GRACE_SECONDS = 2.0
_WAITING = 32  # queries
_CHUNK = 5_000  # rows in one message


class Mirrored(Protocol):
    """A view, as far as the mirror needs it."""

    name: str
    columns: tuple[Column, ...]
    table: Table


class Failure(msgspec.Struct):
    message: str
    remedy: str = ""


@dataclass(slots=True)
class _Pending:
    """What the mirror lacks of a view."""

    view: Mirrored
    defined: bool = False
    rows: dict[str, Row | None] = field(default_factory=dict)
    appended: list[Row] = field(default_factory=list)


class Busy(LogError):
    """Too many queries at once; the same one can be answered later."""


class Sql:
    """Answers queries. Belongs to the event loop; nothing here blocks it."""

    def __init__(self, *, memory: str, seconds: float, newest: int) -> None:
        self._memory = memory
        self._seconds = seconds
        self._newest = newest
        self._views: dict[str, _Pending] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._next = 0
        self._lock = asyncio.Lock()
        self._asking = asyncio.Semaphore(2)
        self._waiting = 0
        self._asked_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, view: Mirrored) -> None:
        """Mirror this view from now on."""
        self._views[view.name] = _Pending(view)

    def changed(self, view: Mirrored, changes: list[Change]) -> None:
        """Note what the next folding must do; an empty list says that the view starts over."""
        pending = self._views[view.name]
        if not changes:
            pending.defined = False
        if not pending.defined:  # it will be filled from the view itself
            return
        for change in changes:
            if change.key is not None:
                pending.rows[change.key] = change.row
            elif change.row is not None:
                pending.appended.append(change.row)
        del pending.appended[: -self._newest]

    async def run(self) -> None:
        """Fold changes in every tenth of a second, once someone has asked; until cancelled."""
        try:
            while True:
                await asyncio.sleep(_FOLD_SECONDS)
                # Who asked lately will ask again; for nobody the folding is not worth the work.
                asked = asyncio.get_running_loop().time() - self._asked_at < _ASKED_SECONDS
                if self._process is not None and asked:
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
            async with self._asking:
                await self._fold()
                answer = await self._ask(
                    {"op": "query", "sql": sql, "limit": limit, "seconds": self._seconds},
                    self._seconds + _GRACE_SECONDS,
                )
        finally:
            self._waiting -= 1
        if "failure" in answer:
            raise QueryError(answer["failure"]["message"], remedy=answer["failure"]["remedy"])
        return bytes(answer["result"])

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _fold(self) -> None:
        async with self._lock:
            if self._process is None or self._process.returncode is not None:
                await self._start()
            for pending in self._views.values():
                for message in self._messages(pending):
                    answer = await self._ask(message, 30.0)
                    if "failure" in answer:
                        logger.error("cannot fold %s: %s", pending.view.name, answer["failure"])

    def _messages(self, pending: _Pending) -> Iterator[dict[str, Any]]:
        view = pending.view
        if not view.columns:
            return
        if not pending.defined:
            pending.defined = True
            columns = [{"name": c.name, "type": c.type} for c in view.columns]
            yield {
                "op": "define",
                "name": view.name,
                "columns": columns,
                "keyed": view.table.keyed,
            }
            pending.rows = dict(view.table.rows)
            pending.appended = list(view.table.newest)
        rows, pending.rows = list(pending.rows.items()), {}
        appended, pending.appended = pending.appended, []
        rows += [("", row) for row in appended]
        for at in range(0, len(rows), _CHUNK):
            chunk = rows[at : at + _CHUNK]
            yield {
                "op": "fold",
                "name": view.name,
                "keys": [key for key, _ in chunk],
                "rows": [None if row is None else _encode(row).decode() for _, row in chunk],
                "newest": self._newest,
            }

    async def _start(self) -> None:
        for pending in self._views.values():
            pending.defined = False
        environment = {
            "PATH": os.defpath,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "HOME": "/nonexistent",
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "millstream.store.sql_process",
            self._memory,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the server, which ends this one in its time
        )
        self._process = process
        task = asyncio.get_running_loop().create_task(self._listen(process))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        process = self._process
        if process is None or process.stdin is None:
            raise LogError("the SQL process ended", remedy="try again")
        self._next += 1
        number, answer = self._next, asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        data = msgspec.msgpack.encode({"number": number, **message})
        try:
            process.stdin.write(len(data).to_bytes(4, "big") + data)
            await process.stdin.drain()
            found: dict[str, Any] = await asyncio.wait_for(answer, seconds)
            return found
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            raise QueryError(f"the query took longer than {self._seconds:g} s") from None
        except (ConnectionError, BrokenPipeError):
            raise QueryError("the query needs too much memory", remedy="ask for less") from None
        finally:
            self._answers.pop(number, None)

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            while True:
                size = int.from_bytes(await process.stdout.readexactly(4), "big")
                answer = msgspec.msgpack.decode(await process.stdout.readexactly(size))
                waiting = self._answers.get(answer["number"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except asyncio.IncompleteReadError:
            await process.wait()
        if self._process is process:
            self._process = None
            logger.warning(
                "the SQL process ended (%s); it starts again when asked", process.returncode
            )
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError())


_encode = msgspec.json.Encoder(decimal_format="number").encode
