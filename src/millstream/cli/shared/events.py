"""Reads events from a file or a pipe."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable
from typing import BinaryIO

from millstream.errors import MillstreamError

CHUNK = 1 << 18
BLANK = b" \t\r\n"


class FileEvents:
    """The events of a file: NDJSON or one JSON array, according to the first character.

    `on_read` is called with the number of bytes after each read. The file is read in a thread, so
    that a slow pipe does not delay the sending.
    """

    def __init__(self, file: BinaryIO, name: str, on_read: Callable[[int], None]) -> None:
        self._file = file
        self._name = name
        self._on_read = on_read
        self._places = array("Q")  # the line of each event, or its number in an array
        self.unit = "line"

    def place(self, index: int) -> str:
        """Where the event with this index is in the file: `line 3`."""
        return f"{self.unit} {self._places[index]}"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunk = await self._chunk()
        while chunk and not chunk.strip(BLANK):
            chunk += (more := await self._chunk())
            if not more:
                return
        reader = self._array(chunk) if chunk.lstrip(BLANK)[:1] == b"[" else self._lines(chunk)
        async for event in reader:
            yield event

    async def _chunk(self) -> bytes:
        read = getattr(
            self._file, "read1", self._file.read
        )  # returns what is there, without waiting
        chunk: bytes = await asyncio.to_thread(read, CHUNK)
        self._on_read(len(chunk))
        return chunk

    async def _lines(self, chunk: bytes) -> AsyncIterator[bytes]:
        number, rest = 0, b""
        while chunk:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                number += 1
                if line.strip(BLANK):
                    self._places.append(number)
                    yield line
            chunk = await self._chunk()
        if rest.strip(BLANK):
            self._places.append(number + 1)
            yield rest

    async def _array(self, text: bytes) -> AsyncIterator[bytes]:
        import msgspec

        self.unit = "element"
        pieces = [text]
        while chunk := await self._chunk():
            pieces.append(chunk)
        try:
            elements = msgspec.json.decode(b"".join(pieces), type=list[msgspec.Raw])
        except msgspec.DecodeError as error:
            raise MillstreamError(
                f"cannot read {self._name} as a JSON array: {error}",
                remedy="correct it, or write one event a line (NDJSON)",
            ) from None
        for number, element in enumerate(elements, start=1):
            self._places.append(number)
            # The sender sends lines of NDJSON: an event over several lines must become one line.
            raw = bytes(element)
            yield msgspec.json.format(raw, indent=-1) if b"\n" in raw else raw
