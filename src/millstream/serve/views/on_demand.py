"""Streams' events and ledgers' entries: read while a client wants them, once for all who do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from confluent_kafka import KafkaException

from millstream.errors import LogError
from millstream.log.settings import LogSettings
from millstream.log.topics import topic_ids
from millstream.serve.views.served_view import Live
from millstream.serve.views.view_readers import Reading

_NEWEST = 500  # records of each partition that a first client can be shown at once
_LINGER_SECONDS = 10.0  # a client that reconnects finds the reading still going


class Streams:
    """The readings of streams, or of ledgers, that have clients."""

    def __init__(self, log: LogSettings, lives: Mapping[str, Live]) -> None:
        self._log = log
        self.lives = lives
        self._readings: dict[str, Reading] = {}
        self._users: dict[str, int] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._endings: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Live]:
        """The one of that name, up to date when this is entered and as long as it lasts."""
        await self.acquire(name)
        try:
            yield self.lives[name]
        finally:
            self.release(name)

    async def acquire(self, name: str) -> Live:
        self._users[name] = self._users.get(name, 0) + 1
        if (ending := self._endings.pop(name, None)) is not None:
            ending.cancel()
        try:
            async with self._locks.setdefault(name, asyncio.Lock()):
                await self._read(name)
        except BaseException:
            self.release(name)
            raise
        return self.lives[name]

    def release(self, name: str) -> None:
        self._users[name] -= 1
        if self._users[name] == 0:
            loop = asyncio.get_running_loop()
            self._endings[name] = loop.call_later(_LINGER_SECONDS, self._end, name)

    def stop(self) -> None:
        for ending in self._endings.values():
            ending.cancel()
        for name in list(self._readings):
            self._end(name)

    async def _read(self, name: str) -> None:
        live = self.lives[name]
        reading = self._readings.get(name)
        if reading is None:
            try:
                ids = await asyncio.to_thread(topic_ids, self._log, [live.topic])
            except (KafkaException, TimeoutError) as error:
                what = f"cannot read {live.kind} {name}"
                raise LogError(f"{what}: Kafka does not answer") from error
            if live.topic not in ids:
                raise LogError(
                    f"{live.kind} {name} has no topic {live.topic} in the log",
                    remedy="start collect, analyze or serve anew: each makes what is missing",
                )
            reading = Reading(self._log, live, newest=_NEWEST, lost=lambda: self._again(name))
            await reading.start(ids[live.topic])
            self._readings[name] = reading
        await asyncio.wait_for(reading.caught_up.wait(), 10)

    def _again(self, name: str) -> None:
        """The topic is not as it was: read what there is now, for those who still want it."""
        self._end(name)

        async def read() -> None:
            with contextlib.suppress(LogError, TimeoutError):
                async with self.use(name):
                    pass

        task = asyncio.get_running_loop().create_task(read())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self, name: str) -> None:
        self._endings.pop(name, None)
        if (reading := self._readings.pop(name, None)) is not None:
            reading.stop()
