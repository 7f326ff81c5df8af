"""Where a group starts: a time, a position, the start or the end of the log."""

from __future__ import annotations

from datetime import datetime

from millstream.errors import QueryError
from millstream.log.consumer import bounds
from millstream.log.search import offsets_since
from millstream.log.settings import LogSettings
from millstream.values.position import Position


def find_start(log: LogSettings, topic: str, epoch: str, after: str | None) -> Position:
    """The position that `after` means, with an offset for each partition. Blocks.

    None is the start: a new group gets everything that the log holds. InvalidPosition or
    QueryError if `after` is not valid, LogError if Kafka does not answer.
    """
    held = bounds(log, topic)
    first = {partition: low for partition, (low, _) in held.items()}
    if after in (None, "start"):
        return Position(epoch, first)
    if after == "end":
        return Position(epoch, {partition: high for partition, (_, high) in held.items()})
    if (moment := _moment(after or "")) is not None:
        found = offsets_since(log, {topic: moment})
        return Position(epoch, {partition: offset for (_, partition), offset in found.items()})
    position = Position.parse(after or "")
    if position.epoch != epoch:
        raise QueryError(
            f"position {after!r} is of another topic; {topic} has the epoch {epoch}",
            remedy="the view was rebuilt since: give a time, 'start' or 'end'",
        )
    return Position(epoch, {p: max(position.offsets.get(p, 0), low) for p, low in first.items()})


def _moment(text: str) -> int | None:
    """Milliseconds since the epoch of an RFC 3339 time; None if it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        raise QueryError(
            f"the time {text!r} has no time zone", remedy=f"write {text}Z if it is UTC"
        )
    return round(moment.timestamp() * 1000)
