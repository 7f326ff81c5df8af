"""The server's side of a process that answers SQL."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from millstream.errors import LogError
from millstream.values.visibility import Visibility

_ENDED: dict[str, Any] = {}  # the answer of a process that ended
_GRACE_SECONDS = 2.0  # after a query's time, before its process is killed


class SqlProcessFailed(LogError):
    """The process ended, or lacked memory or time."""


@dataclass(slots=True, eq=False)
class RunningQuery:
    """A query that a process is answering."""

    alone: bool  # no other query ran at the same time


class SqlProcess:
    """A process that answers SQL. Belongs to the event loop; ends after its queries if retired."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self._running: set[RunningQuery] = set()
        self._retired = False
        self.ended = False
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    @classmethod
    async def start(cls, memory: str) -> SqlProcess:
        """Start a process without tables, which may use that much memory."""
        environment = {
            "PATH": os.defpath,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "HOME": "/nonexistent",
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "millstream.store.sql.process_main",
            memory,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C goes to the server, which ends this process
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @contextlib.contextmanager
    def running(self) -> Iterator[RunningQuery]:
        """Count a query as running within the block."""
        run = RunningQuery(alone=not self._running)
        for other in self._running:
            other.alone = False
        self._running.add(run)
        try:
            yield run
        finally:
            self._running.discard(run)
            self._end_if_idle()

    def retire(self) -> None:
        """End the process after its running queries; it gets no new ones."""
        self._retired = True
        self._end_if_idle()

    async def stop(self) -> None:
        """End the process now."""
        self._kill()
        await asyncio.gather(self._listening, return_exceptions=True)

    async def query(
        self,
        sql: str,
        limit: int,
        seconds: float,
        max_bytes: int,
        parameters: Mapping[str, Any],
        visible: Mapping[str, Visibility] | None,
    ) -> dict[str, Any]:
        arguments = {
            "sql": sql,
            "limit": limit,
            "seconds": seconds,
            "max_bytes": max_bytes,
            "parameters": dict(parameters),
            "visible": visible,
        }
        return await self.request({"op": "query", **arguments}, seconds + _GRACE_SECONDS)

    async def request(self, content: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer; TimeoutError if it takes too long, SqlProcessFailed if the process ends."""
        if self.ended or self._process.stdin is None:
            raise SqlProcessFailed("the SQL process ended", remedy="try again")
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        data = msgspec.msgpack.encode({"number": number, **content})
        try:
            async with asyncio.timeout(seconds):
                self._process.stdin.write(len(data).to_bytes(4, "big") + data)
                await self._process.stdin.drain()
                found: dict[str, Any] = await answer
        except TimeoutError:
            self._kill()
            raise
        except ConnectionError:
            found = _ENDED
        finally:
            self._answers.pop(number, None)
        if found is _ENDED:
            raise SqlProcessFailed("the SQL process ended", remedy="try again")
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
        if self._retired and not self._running:
            self._kill()

    def _kill(self) -> None:
        if not self.ended:  # its pid may belong to another process by now
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        self._end()

    def _end(self) -> None:
        self.ended = True
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_result(_ENDED)
