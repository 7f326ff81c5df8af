"""Where a group starts: a time, a position, the start or the end of the log."""

from __future__ import annotations

from millstream.errors import QueryError
from millstream.log.consumer import bounds
from millstream.log.search import offsets_since
from millstream.log.settings import LogSettings
from millstream.serve.views.replay import StartTime, read_start
from millstream.values.position import Position


def find_start(log: LogSettings, topic: str, epoch: str, after: str | None) -> Position:
    """The position that `after` means, with an offset for each partition. Blocks.

    None is the start: a new group gets everything that the log holds. InvalidPosition or
    QueryError if `after` is not valid, LogError if Kafka does not answer.
    """
    held = bounds(log, topic)
    first = {partition: low for partition, (low, _) in held.items()}
    if not after or after == "start":
        return Position(epoch, first)
    if after == "end":
        return Position(epoch, {partition: high for partition, (_, high) in held.items()})
    wanted = read_start(after)
    if isinstance(wanted, StartTime):
        found = offsets_since(log, {topic: wanted.milliseconds})
        return Position(epoch, {partition: offset for (_, partition), offset in found.items()})
    if wanted is None or wanted.epoch != epoch:
        raise QueryError(
            f"position {after!r} is of another topic; {topic} has the epoch {epoch}",
            remedy="the view was rebuilt since: give a time, 'start' or 'end'",
        )
    return Position(epoch, {p: max(wanted.offsets.get(p, 0), low) for p, low in first.items()})
