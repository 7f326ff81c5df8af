"""The events in a file or a pipe, each as its own bytes."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable
from typing import BinaryIO

from millstream.errors import MillstreamError

CHUNK = 1 << 18
BLANK = b" \t\r\n"


class Events:
    """NDJSON, or one JSON array, told apart by the first character.

    `read` is told the number of bytes each time some were read. The file is read in a thread, so
    that a slow pipe does not hold up what is being sent.
    """

    def __init__(self, file: BinaryIO, name: str, read: Callable[[int], None]) -> None:
        self._file = file
        self._name = name
        self._read = read
        self._places = array("Q")  # of each event: its line, or its number in an array
        self.unit = "line"

    def place(self, index: int) -> str:
        """Where in the file the event is that came out as number `index`: `line 3`."""
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
        read = getattr(self._file, "read1", self._file.read)  # what is there, without waiting
        chunk: bytes = await asyncio.to_thread(read, CHUNK)
        self._read(len(chunk))
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
            # A line of NDJSON is the sender's unit: an event that was written over several lines
            # must become one.
            raw = bytes(element)
            yield msgspec.json.format(raw, indent=-1) if b"\n" in raw else raw
