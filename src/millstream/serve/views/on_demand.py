"""Streams and ledgers that this server reads only while clients use them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from confluent_kafka import KafkaException

from millstream.errors import LogError
from millstream.log.settings import LogSettings
from millstream.log.topics import topic_ids
from millstream.serve.views.served_view import ServedView
from millstream.serve.views.view_readers import ViewReader

_NEWEST = 500  # records of each partition that the first client can get at once
_LINGER_SECONDS = 10.0  # reading continues that long for clients that reconnect


class OnDemandViews:
    """Streams or ledgers by name. All clients of one share its reader."""

    def __init__(self, log: LogSettings, served: Mapping[str, ServedView]) -> None:
        self._log = log
        self.served = served
        self._readers: dict[str, ViewReader] = {}
        self._users: dict[str, int] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[ServedView]:
        """Read the stream or ledger within the block; it has caught up when the block begins."""
        self._users[name] = self._users.get(name, 0) + 1
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()
        try:
            async with self._locks.setdefault(name, asyncio.Lock()):
                await self._read(name)
            yield self.served[name]
        finally:
            self._users[name] -= 1
            if self._users[name] == 0:
                loop = asyncio.get_running_loop()
                self._timers[name] = loop.call_later(_LINGER_SECONDS, self._end, name)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for name in list(self._readers):
            self._end(name)

    async def _read(self, name: str) -> None:
        served = self.served[name]
        reader = self._readers.get(name)
        if reader is None:
            try:
                ids = await asyncio.to_thread(topic_ids, self._log, [served.topic])
            except (KafkaException, TimeoutError) as error:
                what = f"cannot read {served.kind} {name}"
                raise LogError(f"{what}: Kafka does not answer") from error
            if served.topic not in ids:
                raise LogError(
                    f"{served.kind} {name} has no topic {served.topic} in the log",
                    remedy="restart collect, analyze or serve: each creates missing topics",
                )
            reader = ViewReader(self._log, served, newest=_NEWEST, lost=lambda: self._again(name))
            await reader.start(ids[served.topic])
            self._readers[name] = reader
        await asyncio.wait_for(reader.caught_up.wait(), 10)

    def _again(self, name: str) -> None:
        """Read the topic again after it changed, for the clients that still use it."""
        self._end(name)

        async def read() -> None:
            with contextlib.suppress(LogError, TimeoutError):
                async with self.use(name):
                    pass

        task = asyncio.get_running_loop().create_task(read())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self, name: str) -> None:
        self._timers.pop(name, None)
        if (reader := self._readers.pop(name, None)) is not None:
            reader.stop()
