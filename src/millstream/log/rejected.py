"""The events that failed validation."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.event import FIELD, REASON
from millstream.log.held import find_app
from millstream.log.set_aside import SetAside, read_all, read_place
from millstream.log.settings import LogSettings
from millstream.log.topics import rejected_topic


class Rejected(SetAside):
    """An event as it came, and why it was not accepted."""

    __slots__ = ()

    @property
    def reason(self) -> str:
        return self.headers.get(REASON, "")

    @property
    def field(self) -> str:
        return self.headers.get(FIELD, "")


def app_with(log: LogSettings, stream: str, app: str = "") -> str:
    """The name of the pipeline that has such a stream; MillstreamError if not exactly one has.

    If `app` was asked for, it is that one, or an error.
    """
    return find_app(log, "rejected", stream, "stream", app=app)


def read_rejected(log: LogSettings, app: str, stream: str, since: int = 0) -> Iterator[Rejected]:
    """All that are still held, from a moment (milliseconds since the epoch) on; blocks."""
    return read_all(log, rejected_topic(app, stream), stream, Rejected, since)


def read_one(log: LogSettings, app: str, stream: str, partition: int, offset: int) -> Rejected:
    """The one at that place; MillstreamError if it is not held there."""
    place = (stream, partition, offset)
    return read_place(log, rejected_topic(app, stream), Rejected, place, "rejected")
