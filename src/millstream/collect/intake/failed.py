"""Events that Kafka refuses for good (too large, no such topic, no permission), kept on disk.

Each event has one file, named after it (`<collector>-<sequence>.<index>`). An event that is refused
again after a crash therefore has one file. Commands and collectors use the folder at the same time.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from millstream.collect.journal.disk import sync_folder, write_durably
from millstream.errors import MillstreamError
from millstream.values import event
from millstream.values.clock import now_ms
from millstream.values.dead_letter import Action

_SUFFIX = ".failed"
_SAFE = re.compile(r"\w[\w.-]{0,199}", re.ASCII)

Header = tuple[str, str | bytes | None]


class FailedEvent(msgspec.Struct, array_like=True, frozen=True):
    """A record that Kafka refused, and the reason: a dead letter."""

    topic: str
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int  # the record's own, milliseconds since the epoch
    reason: str
    failed_at: int  # milliseconds since the epoch
    id: str = ""  # the file's name; not stored in it

    @property
    def at(self) -> int:
        return self.timestamp

    @property
    def details(self) -> dict[str, Any]:
        return {"topic": self.topic, "failed_at": self.failed_at, "headers": self._headers}

    @property
    def facts(self) -> dict[str, str]:
        key = (self.key or b"").decode("utf-8", "backslashreplace")
        return {"topic": self.topic or "–", "key": key, **self._headers}

    @property
    def _headers(self) -> dict[str, str]:
        return {name: (text or b"").decode("utf-8", "replace") for name, text in self.headers}


class FailedStore:
    """The folder of failed events. Blocks: a loop calls it in a thread."""

    actions: tuple[Action, ...] = ("retry", "drop")

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(
        self,
        topic: str,
        key: str | bytes | None,
        value: bytes,
        headers: Iterable[Header],
        timestamp: int,
        reason: str,
    ) -> str:
        """Store a record; durable when it returns the id. OSError if the disk fails."""
        failed = FailedEvent(
            topic,
            _bytes(key),
            value,
            tuple((name, _bytes(text)) for name, text in headers),
            timestamp,
            reason,
            now_ms(),
        )
        name = _id(failed)
        if not self.folder.is_dir():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_folder(self.folder.parent)
        write_durably(self._path(name), msgspec.msgpack.encode(failed))
        return name

    def ids(self) -> list[str]:
        """All ids, in each collector's order of receipt."""
        if not self.folder.is_dir():
            return []
        names = (path.name for path in self.folder.iterdir())
        return sorted(
            (name.removesuffix(_SUFFIX) for name in names if not name.startswith(".")),
            key=_order,
        )

    def list(self, since: int = 0) -> Iterator[FailedEvent]:
        """All events that failed from this time on, in the order of `ids`, read one at a time.

        Files that cannot be read are left out: `unreadable` lists them.
        """
        for each in self.ids():
            with contextlib.suppress(
                FailedEventNotFound, Unreadable
            ):  # dropped meanwhile, or damaged
                if (failed := self.get(each)).failed_at >= since:
                    yield failed

    def unreadable(self) -> Iterator[str]:
        """The ids of damaged files."""
        for each in self.ids():
            try:
                self.get(each)
            except Unreadable:
                yield each
            except FailedEventNotFound:  # dropped meanwhile
                continue

    def get(self, id: str) -> FailedEvent:  # noqa: A002
        """One failed event; FailedEventNotFound, or Unreadable if its file is damaged."""
        try:
            data = self._path(id).read_bytes()
        except FileNotFoundError:
            raise FailedEventNotFound(
                f"there is no failed event {id!r} in {self.folder}",
                remedy="`millstream failed list` shows those that are there",
            ) from None
        try:
            failed = msgspec.msgpack.decode(data, type=FailedEvent)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Unreadable(
                f"the failed event in {self._path(id)} cannot be read: {error}",
                remedy="look at the file, and `millstream failed drop` it",
            ) from None
        return msgspec.structs.replace(failed, id=id)

    def find(self, collector: str, sequence: int, index: int) -> FailedEvent | None:
        """The event of that identity; None if it is not in the store."""
        try:
            return self.get(event_id(collector, sequence, index))
        except FailedEventNotFound:
            return None

    def drop(self, ids: Iterable[str]) -> int:
        """Delete events; how many existed. Durable when it returns."""
        dropped = 0
        for each in ids:
            try:
                self._path(each).unlink()
            except FileNotFoundError:
                continue
            dropped += 1
        if dropped:
            sync_folder(self.folder)
        return dropped

    def _path(self, id: str) -> Path:  # noqa: A002
        if not _SAFE.fullmatch(id):
            raise FailedEventNotFound(f"{id!r} is no id of a failed event")
        return self.folder / f"{id}{_SUFFIX}"


class FailedEventNotFound(MillstreamError):
    """No failed event has that id."""


class Unreadable(MillstreamError):
    """The file of a failed event is damaged."""


def event_id(collector: str, sequence: int | str, index: int | str = 0) -> str:
    """The id of an event by its identity."""
    return f"{collector}-{sequence}.{index}"


def _id(failed: FailedEvent) -> str:
    headers = {name: (value or b"").decode(errors="replace") for name, value in failed.headers}
    name = event_id(
        headers.get(event.COLLECTOR, ""),
        headers.get(event.SEQUENCE, ""),
        headers.get(event.INDEX, "0"),
    )
    if event.COLLECTOR in headers and event.SEQUENCE in headers and _SAFE.fullmatch(name):
        return name
    content = msgspec.msgpack.encode((failed.topic, failed.key, failed.value, failed.timestamp))
    return f"unnumbered-{xxhash.xxh3_64_hexdigest(content)}"


def _order(name: str) -> tuple[str, int, int, str]:
    """A sort key: numbers by value, so that entry 10 comes after entry 9."""
    collector, _, place = name.rpartition("-")
    sequence, _, index = place.partition(".")
    if sequence.isdecimal() and index.isdecimal():
        return collector, int(sequence), int(index), ""
    return name, 0, 0, name


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
