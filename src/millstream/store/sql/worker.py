"""One process that answers SQL, as the server sees it: requests, answers, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from millstream.errors import LogError

_NONE: dict[str, Any] = {}  # what a process that ended gives as its answer
_GRACE_SECONDS = 2.0  # beyond its time, before a query that cannot be interrupted is killed


class Overrun(LogError):
    """The process had not the memory or the time for what it was asked."""


@dataclass(slots=True, eq=False)
class Run:
    """A query that a process is answering."""

    alone: bool  # no other one took memory from it meanwhile


class Worker:
    """Belongs to the event loop. When it is retired it ends, after the queries that it answers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self._runs: set[Run] = set()
        self._retired = False
        self.ended = False
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    @classmethod
    async def start(cls, memory: str) -> Worker:
        """A process without tables, which may use that much memory."""
        environment = {
            "PATH": os.defpath,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "HOME": "/nonexistent",
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "millstream.store.sql.sql_process",
            memory,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the server, which ends this one in its time
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @contextlib.contextmanager
    def running(self) -> Iterator[Run]:
        """Count a query as being answered here."""
        run = Run(alone=not self._runs)
        for other in self._runs:
            other.alone = False
        self._runs.add(run)
        try:
            yield run
        finally:
            self._runs.discard(run)
            self._end_if_idle()

    def retire(self) -> None:
        """Let the process end as soon as it answers no query; nothing new is asked of it."""
        self._retired = True
        self._end_if_idle()

    async def stop(self) -> None:
        """End the process now."""
        self._kill()
        await asyncio.gather(self._listening, return_exceptions=True)

    async def query(self, sql: str, limit: int, seconds: float, max_bytes: int) -> dict[str, Any]:
        asked = {"sql": sql, "limit": limit, "seconds": seconds, "max_bytes": max_bytes}
        request = {"op": "query", **asked}
        return await self.ask(request, seconds + _GRACE_SECONDS)

    async def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer; TimeoutError if it takes too long, Overrun if the process ends first."""
        if self.ended or self._process.stdin is None:
            raise Overrun("the SQL process ended", remedy="try again")
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        data = msgspec.msgpack.encode({"number": number, **request})
        try:
            async with asyncio.timeout(seconds):
                self._process.stdin.write(len(data).to_bytes(4, "big") + data)
                await self._process.stdin.drain()
                found: dict[str, Any] = await answer
        except TimeoutError:
            self._kill()
            raise
        except ConnectionError:
            found = _NONE
        finally:
            self._answers.pop(number, None)
        if found is _NONE:
            raise Overrun("the SQL process ended", remedy="try again")
        return found

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        try:
            while True:
                size = int.from_bytes(await self._process.stdout.readexactly(4), "big")
                answer = msgspec.msgpack.decode(await self._process.stdout.readexactly(size))
                waiting = self._answers.get(answer["number"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self._end()
            await self._process.wait()

    def _end_if_idle(self) -> None:
        if self._retired and not self._runs:
            self._kill()

    def _kill(self) -> None:
        if not self.ended:  # one that ended by itself must not be looked for twice
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        self._end()

    def _end(self) -> None:
        self.ended = True
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_result(_NONE)
