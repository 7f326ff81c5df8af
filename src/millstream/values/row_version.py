"""How new a row is, and how far on in its life: servers and `analyze` judge it alike.

A row of a windowed view is provisional while events may come for its window, final when the view's
watermark has passed the window's end, and corrected when it changed after that. Its record says so
in `_state`; Spark writes rows without one. Whatever follows a final row under another number is a
correction, whether its record says so yet or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.values.hidden_columns import POSITION, RETURNED, REVISION, STATE

STATES = ("provisional", "final", "corrected")
RETRACTION = "retraction"  # the `_kind` of a row that is taken back
PROVISIONAL, FINAL, CORRECTED = range(3)  # stages: places in STATES

# What tells rows of one key apart (a revision; or source, partition, offset and row; or nothing),
# then the stage, then the tombstone that the row came back after.
RowVersion = tuple[Any, ...]
_STAGES = {name: stage for stage, name in enumerate(STATES)}
_UNKNOWN, _POSITION = 2, 6  # how many parts a mark has


def version_of(row: Mapping[str, Any]) -> RowVersion:
    """How new a row is, and how far on."""
    state = row.get(STATE)
    stage = _STAGES.get(state, PROVISIONAL) if type(state) is str else PROVISIONAL
    # A row that the tombstone of an older one overtook comes again, as new as it was but for this.
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


def has_position(mark: RowVersion) -> bool:
    """Whether the row comes from one record of one source."""
    return len(mark) == _POSITION


def is_known(mark: RowVersion) -> bool:
    """Whether the row says how new it is."""
    return len(mark) != _UNKNOWN


def is_newer(mark: RowVersion, held: RowVersion) -> bool:
    """Whether a row may take the held one's place; what cannot be compared may."""
    if len(mark) != len(held) or len(mark) == _UNKNOWN:
        return True
    if len(mark) == _POSITION and mark[:2] != held[:2]:
        return True
    return mark > held


def version_after(mark: RowVersion, held: RowVersion) -> RowVersion | None:
    """What a row counts as that comes after the held one; None: as a repeat."""
    if not is_newer(mark, held):
        return None
    if held[-2] == PROVISIONAL or (is_known(mark) and mark[:-2] == held[:-2]):
        return mark
    return (*mark[:-2], CORRECTED, mark[-1])
