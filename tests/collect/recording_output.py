"""A ReaderOutput for tests: it records the offered messages."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class RecordingOutput:
    """Accepts nothing while `open` is not set, and stores nothing while `disk` is not set."""

    bookmark: bytes | None = None
    messages: list[bytes] = field(default_factory=list)
    content_types: list[str] = field(default_factory=list)
    attributes: list[Mapping[str, str] | None] = field(default_factory=list)
    bookmarks: list[bytes | None] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    disk: asyncio.Event = field(default_factory=asyncio.Event)
    _writing: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open.set()
        self.disk.set()

    async def offer(
        self,
        message: bytes,
        *,
        content_type: str = "application/json",
        attributes: Mapping[str, str] | None = None,
        bookmark: bytes | None = None,
    ) -> asyncio.Future[None]:
        await self.open.wait()
        self.messages.append(message)
        self.content_types.append(content_type)
        self.attributes.append(attributes)
        self.bookmarks.append(bookmark)
        task = asyncio.create_task(self._store(bookmark))
        self._writing.append(task)
        return task

    async def _store(self, bookmark: bytes | None) -> None:
        await self.disk.wait()
        if bookmark is not None:
            self.bookmark = bookmark


class FillingOutput(RecordingOutput):
    """Accepts so many messages, and no more until `empty` is called."""

    def __init__(self, room: int, bookmark: bytes | None = None) -> None:
        super().__init__(bookmark)
        self._room = room

    @property
    def full(self) -> bool:
        """Whether it accepts no more."""
        return not self.open.is_set()

    def empty(self) -> None:
        """Accept everything from now on."""
        self._room = sys.maxsize
        self.open.set()

    async def offer(self, message: bytes, **more: Any) -> asyncio.Future[None]:
        stored = await super().offer(message, **more)
        if len(self.messages) >= self._room:
            self.open.clear()
        return stored
