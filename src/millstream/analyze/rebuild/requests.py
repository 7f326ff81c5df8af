"""Requests to rebuild a view, sent to a running `analyze` through a topic."""

from __future__ import annotations

import threading

import msgspec

from millstream.log.consumer import Reader, bounds, read_range
from millstream.log.producing.write import write
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topic_names import rebuilds_topic

_SECONDS = 10.0


class RebuildRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A view to rebuild. The record's key is the view; a tombstone ends the request."""

    id: str
    since: int | None = None  # events from then on, in milliseconds; None: all that are held
    go: bool = False  # whether the new view may replace the old one once it is ready
    cancel: bool = False


def read_requests(log: LogSettings, app: str) -> tuple[dict[str, RebuildRequest], dict[int, int]]:
    """The open requests by view, and the offsets from which to read on. Blocks."""
    topic, found, read = rebuilds_topic(app), dict[str, RebuildRequest](), dict[int, int]()
    for partition, (low, high) in bounds(log, topic).items():
        read[partition] = high
        for record in read_range(log, topic, partition, low, high):
            view, request = _decode(record) or ("", None)
            found.pop(view, None)
            if request is not None:
                found[view] = request
    return found, read


def send_request(log: LogSettings, app: str, view: str, request: RebuildRequest) -> None:
    """Send a request to `analyze`, also to one that starts later. Blocks."""
    write(log, rebuilds_topic(app), {view: msgspec.json.encode(request)}, _SECONDS)


class RequestReader:
    """Reads requests in a thread, from the first open one on."""

    def __init__(self, log: LogSettings, app: str) -> None:
        self.open, read = read_requests(log, app)  # as they were at the start
        self._unread = dict(self.open)
        self._lock = threading.Lock()
        topic = rebuilds_topic(app)
        start = {(topic, partition): offset for partition, offset in read.items()}
        self._reader = Reader(log, start, self._receive)

    def take(self) -> dict[str, RebuildRequest]:
        """The requests that were not taken yet, the newest of each view."""
        with self._lock:
            unread, self._unread = self._unread, {}
        return unread

    def defer(self, view: str, request: RebuildRequest) -> None:
        """Return a request to be taken again, unless a newer one is there."""
        with self._lock:
            self._unread.setdefault(view, request)

    def close(self) -> None:
        self._reader.close()

    def _receive(self, records: list[Record]) -> None:
        with self._lock:
            for record in records:
                view, request = _decode(record) or ("", None)
                if request is not None:
                    self._unread[view] = request


def _decode(record: Record) -> tuple[str, RebuildRequest | None] | None:
    """The view and its request, None for a tombstone; None if the record can't be read."""
    try:
        view = (record.key or b"").decode()
        if record.value is None:
            return view, None
        return view, msgspec.json.decode(record.value, type=RebuildRequest)
    except ValueError:
        return None
