"""A folder into which files are written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.connectors.conformance_case import Case, event

from millstream.connectors import DirectorySource

_PORTION = 1_000


class DirectoryCase(Case):
    name = "directory"
    behind_unit = "files"
    why_no_stall = "files do not hang: one that is being written is waited for (test_directory.py)"
    why_no_hold = "files wait for as long as they must"

    async def start(self) -> None:
        self._folder = self.folder / "in"
        self._away = self.folder / "away"
        self._folder.mkdir()
        self._files = 0

    async def stop(self) -> None:
        pass

    @property
    def source(self) -> DirectorySource:
        return DirectorySource(self._folder, settle="", poll="10 ms")

    async def send(self, numbers: Sequence[int]) -> None:
        self._put(b"".join(event(number) + b"\n" for number in numbers))

    async def pour(self, total: int) -> None:
        for first in range(0, total, _PORTION):
            portion = range(first, min(first + _PORTION, total))
            self._put(b"".join(event(number, 900) + b"\n" for number in portion))
            self.poured = portion.stop
            await asyncio.sleep(0)

    async def drop(self) -> None:
        # As when the file system is unmounted.
        self._folder.rename(self._away)
        await asyncio.sleep(0.05)
        self._away.rename(self._folder)

    async def garbage(self) -> None:
        for content in (b"", b"\xff\xfe", b"{", b"\n\n", b"y" * 200_000):
            self._put(content)
            self._put(content, ".json")
            self._put(content, ".csv.gz")
            self._put(content, ".parquet")
        (self._folder / "link.ndjson").symlink_to("nowhere")

    def _put(self, content: bytes, suffix: str = ".ndjson") -> None:
        self._files += 1
        name = f"{self._files:06}{suffix}"
        unfinished = self._folder / f"{name}.tmp"
        unfinished.write_bytes(content)
        unfinished.rename(self._folder / name)
