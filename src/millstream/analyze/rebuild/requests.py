"""What is wished of `analyze` while it runs: views to compute anew, through a topic."""

from __future__ import annotations

import msgspec

from millstream.log.consumer import bounds, read_range
from millstream.log.producing.write import write
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topic_names import rebuilds_topic

_SECONDS = 10.0


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """A view to be computed anew; its record's key is the view. It is done when that is gone."""

    id: str
    since: int | None = None  # events from then on, in milliseconds; None: all that are held
    go: bool = False  # whether the new one may take the old one's place once it is ready
    cancel: bool = False


def read_request(record: Record) -> tuple[str, Request | None] | None:
    """The view, and what is wished of it (None: nothing any more); None if it can't be read."""
    try:
        name = (record.key or b"").decode()
        wish = None if record.value is None else msgspec.json.decode(record.value, type=Request)
    except ValueError:
        return None
    return name, wish


def open_requests(log: LogSettings, app: str) -> tuple[dict[str, Request], dict[int, int]]:
    """What is not done yet, by view, and the offsets from which to read on. Blocks."""
    topic, found, read = rebuilds_topic(app), dict[str, Request](), dict[int, int]()
    for partition, (low, high) in bounds(log, topic).items():
        read[partition] = high
        for record in read_range(log, topic, partition, low, high):
            name, wish = read_request(record) or ("", None)
            found.pop(name, None)
            if wish is not None:
                found[name] = wish
    return found, read


def put_request(log: LogSettings, app: str, view: str, wish: Request) -> None:
    """Tell `analyze`, also one that starts later. Blocks."""
    write(log, rebuilds_topic(app), {view: msgspec.json.encode(wish)}, _SECONDS)
