"""Reader of files that arrive in a directory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from millstream.connectors.directory.description import DirectorySource
from millstream.connectors.directory.listing import File, SettledFiles, list_files
from millstream.connectors.directory.message_builder import MessageBuilder
from millstream.connectors.directory.read_progress import DirectoryProgress
from millstream.connectors.interface import ReaderOutput
from millstream.connectors.reading.reconnecting_reader import ReconnectingReader
from millstream.connectors.settings import SourceSettings
from millstream.connectors.source_options import seconds
from millstream.values.report import SourceState

_MOST_FILES = 1000  # between two scans of the directory
_VISIBLE_SECONDS = 60.0  # until a new file is visible, on the slowest file system
_STOP_SECONDS = 0.5
_SHARE_OF_SCANNING = 0.1  # the most time spent scanning, in a directory with very many files

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class DirectoryReader(ReconnectingReader[DirectorySource]):
    """Scans the directory repeatedly, and reads each new, complete file once.

    A message's bookmark says which files are read and how far; it is stored with the message. Files
    are read in the order of their modification times, then names.
    """

    def __init__(self, stream: str, source: DirectorySource, settings: SourceSettings) -> None:
        super().__init__(stream, source, settings)
        self.behind_unit = "files"
        self._progress: DirectoryProgress | None = None
        self._settled = SettledFiles(seconds(source.settle) or 0.0)
        self._stored: asyncio.Future[None] | None = None  # of the last message
        self._tries: dict[str, int] = {}
        self._stuck: dict[str, str] = {}  # files that could not be moved or deleted, and why
        self._scan_seconds = 0.0

    @property
    def state(self) -> SourceState:
        """The current state; its error names the files that could not be read."""
        state = super().state
        if state.state == "connected":
            state.error = self._problem()
        return state

    async def read(self, output: ReaderOutput) -> None:
        """Read until cancelled. OSError if the system cannot read the directory or a file."""
        if self._progress is None:
            self._progress = DirectoryProgress.of(output.bookmark, self.source.folder)
        first = True
        while True:
            if self._stored is not None:  # only then may a file be moved or deleted
                await asyncio.shield(self._stored)
            files = await _in_thread(self._scan)
            if first:
                self.connected()
                first = False
            if files:
                await self._offer_files(files, output)
            if not self.behind:
                pause = max(seconds(self.source.poll) or 0.0, self._scan_seconds)
                await asyncio.sleep(pause)

    def _scan(self) -> list[File]:
        """Move or delete finished files; returns the next files to read, in order. In a thread."""
        progress = self._progress
        assert progress is not None
        began, until = time.monotonic(), time.time_ns() - round(_VISIBLE_SECONDS * 1e9)
        found = list_files(self.source.folder, self.source.pattern)
        self._forget_failed({file.name for file in found})
        waiting = []
        for file in found:
            if progress.has_failed(file):
                self._remove_finished(file, self.source.failed_to)
            elif progress.remembers(file):
                self._remove_finished(file, self.source.moved_to)
            elif not progress.is_done(file):
                waiting.append(file)
        progress.shorten(waiting, until)
        complete = self._settled.complete(waiting, time.monotonic())
        self.behind = len(complete)
        # The files that arrived first, ordered by their times. A file that was begun comes first.
        chosen = sorted(complete, key=lambda file: (file.changed, file.name))[:_MOST_FILES]
        chosen += [file for file in complete if progress.position(file) and file not in chosen]
        self._scan_seconds = (time.monotonic() - began) / _SHARE_OF_SCANNING
        return sorted(
            chosen, key=lambda file: (not progress.position(file), file.modified, file.name)
        )

    async def _offer_files(self, files: list[File], output: ReaderOutput) -> None:
        assert self._progress is not None
        builder = MessageBuilder(self.source, self._progress, self.settings, self._tries)
        builder.add(files)
        later = (self.behind or 0) - len(files)
        try:
            while (message := await _in_thread(builder.next_message)) is not None:
                self._stored = await output.offer(
                    message.body, content_type=message.content_type, bookmark=message.bookmark
                )
                self.received(message.events)
                self.behind = later + builder.left
            self.behind = later
        finally:
            with contextlib.suppress(ValueError):  # a thread still uses it
                builder.close()

    def _remove_finished(self, file: File, folder: str) -> None:
        """Move or delete a file, as the source says. A failed file is never deleted."""
        progress, source = self._progress, self.source
        assert progress is not None
        failed = progress.failed.get(file.name) if progress.has_failed(file) else None
        if source.done == "keep" or file.name in self._stuck:
            return
        path = Path(source.folder, file.name)
        try:
            if source.done == "delete" and failed is None:
                path.unlink()
            else:
                target = _free_name(Path(source.folder, folder), file.name)
                shutil.move(path, target)
                if failed is not None:
                    failed.moved_to = str(target)
        except FileNotFoundError:
            return
        except OSError as error:
            self._stuck[file.name] = f"cannot {source.done} {file.name}: {error}"
            _log.error("%s; it stays in %s", self._stuck[file.name], source.folder)
            return
        progress.forget(file)

    def _forget_failed(self, present: set[str]) -> None:
        """Forget failed files that somebody has removed."""
        assert self._progress is not None
        self._stuck = {name: why for name, why in self._stuck.items() if name in present}
        for name, failed in list(self._progress.failed.items()):
            if not (os.path.exists(failed.moved_to) if failed.moved_to else name in present):
                del self._progress.failed[name]

    def _problem(self) -> str:
        failed = dict(self._progress.failed) if self._progress is not None else {}
        if failed:
            name, last = list(failed.items())[-1]
            where = last.moved_to or os.path.join(self.source.folder, name)
            count = f"{len(failed)} files" if len(failed) > 1 else "a file"
            return f"cannot read {count}; {where}: {last.reason}"
        return next(reversed(self._stuck.values()), "")


def _free_name(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    target, number = folder / name, 0
    while target.exists():
        number += 1
        target = folder / f"{name}.{number}"
    return target


async def _in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of `function`. After a cancellation it has a moment to end."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=_STOP_SECONDS)
        raise
