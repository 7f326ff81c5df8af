"""Row versions: decide whether a row is newer than another one of the same key.

`serve` and `analyze` use the same rules. A row of a windowed view is provisional while its window
accepts events, final when the view's watermark has passed the window's end, and corrected when it
changed after that. `_state` says so; Spark writes rows without it. A row with another revision that
follows a final one is a correction, even if its `_state` does not say so yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.values.hidden_columns import POSITION, RETURNED, REVISION, STATE

STATES = ("provisional", "final", "corrected")
RETRACTION = "retraction"  # the `_kind` of a retracted row
PROVISIONAL, FINAL, CORRECTED = range(3)  # stages: indexes in STATES

# A revision, or source, partition, offset and row, or nothing; then the stage; then the offset of
# the tombstone after which the row returned.
RowVersion = tuple[Any, ...]
_STAGES = {name: stage for stage, name in enumerate(STATES)}
_UNKNOWN, _POSITION = 2, 6  # lengths of a version


def version_of(row: Mapping[str, Any]) -> RowVersion:
    """The version of a row."""
    state = row.get(STATE)
    stage = _STAGES.get(state, PROVISIONAL) if type(state) is str else PROVISIONAL
    # A row that an older row's tombstone deleted by mistake is written again; only this differs.
    returned = row.get(RETURNED, 0)
    returned = returned if type(returned) is int else 0
    revision = row.get(REVISION)
    if type(revision) is int:
        return (revision, stage, returned)
    position = row.get(POSITION)
    if isinstance(position, Mapping):
        offset, number = position.get("offset"), position.get("row", 0)
        partition = position.get("partition")
        if type(offset) is int and type(number) is int and type(partition) is int:
            source = str(position.get("source", ""))
            return (source, partition, offset, number, stage, returned)
    return (stage, returned)


def has_position(version: RowVersion) -> bool:
    """Whether the version is the position of one record of one source."""
    return len(version) == _POSITION


def is_known(version: RowVersion) -> bool:
    """Whether the version has a revision or a position."""
    return len(version) != _UNKNOWN


def is_newer(version: RowVersion, held: RowVersion) -> bool:
    """Whether a row may replace the held one; it may if they cannot be compared."""
    if len(version) != len(held) or len(version) == _UNKNOWN:
        return True
    if len(version) == _POSITION and version[:2] != held[:2]:
        return True
    return version > held


def version_after(version: RowVersion, held: RowVersion) -> RowVersion | None:
    """The version of a row that arrives after the held one; None if it is a duplicate."""
    if not is_newer(version, held):
        return None
    if held[-2] == PROVISIONAL or (is_known(version) and version[:-2] == held[:-2]):
        return version
    return (*version[:-2], CORRECTED, version[-1])
