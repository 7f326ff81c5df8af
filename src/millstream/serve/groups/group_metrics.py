"""How far all groups are behind, for `/metrics`: read from Kafka when somebody asks.

A group without members is on no server, and its lag grows: so only Kafka knows it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from millstream.errors import MillstreamError
from millstream.serve.groups.definition import GroupDefinition

_log = logging.getLogger(__name__)
_FRESH_SECONDS = 5.0  # so long, an answer counts for every scrape
_WAIT_SECONDS = 2.0  # a scrape must not fail because Kafka does not answer


class StoredFigures(NamedTuple):
    """What Kafka has about a group."""

    lag: int
    set_aside: int


class GroupMetrics:
    """The figures of the groups in `definitions`. Belongs to the event loop."""

    def __init__(
        self,
        definitions: Mapping[str, GroupDefinition],
        describe: Callable[[GroupDefinition], Awaitable[dict[str, Any]]],
    ) -> None:
        self._definitions = definitions
        self._describe = describe
        self._figures: dict[str, StoredFigures] = {}
        self._reading: asyncio.Task[None] | None = None
        self._read_at = float("-inf")

    async def read(self) -> Mapping[str, StoredFigures]:
        """The figures by group. Those that Kafka does not answer in time are older, or missing."""
        if self._reading is None and self._clock() - self._read_at > _FRESH_SECONDS:
            self._reading = asyncio.create_task(self._read_all())
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=_WAIT_SECONDS)
        return {name: each for name, each in self._figures.items() if name in self._definitions}

    async def stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read_all(self) -> None:
        try:
            # One after the other: each takes a connection to Kafka and a thread.
            for definition in list(self._definitions.values()):
                await self._read_one(definition)
        finally:
            self._reading, self._read_at = None, self._clock()

    async def _read_one(self, definition: GroupDefinition) -> None:
        name = definition.name
        try:
            found = await self._describe(definition)
        except MillstreamError as error:
            _log.info("group %s has no metrics: %s", name, error)
            found = {"warning": str(error)}
        if "warning" in found:
            self._figures.pop(name, None)
        else:
            self._figures[name] = StoredFigures(found["lag"], found["set_aside"])

    @staticmethod
    def _clock() -> float:
        return asyncio.get_running_loop().time()
