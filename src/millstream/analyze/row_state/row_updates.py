"""Records that we write into a view's topic besides Spark's rows."""

from __future__ import annotations

import re
from typing import NamedTuple

from millstream.values.row_version import PROVISIONAL, STATES

# Header names are stored in the log and cannot change.
DELETES = "ends"  # header of a tombstone: the offset of the row that it deletes
REBUILT = "anew"  # header of a row that corrects the same row of an earlier edition

_STATE_SUFFIX = re.compile(rb'(?:,?"_state":"[a-z]+")?(?:,?"_returned":\d+)?}$')


class RowKey(NamedTuple):
    """A row's key in one partition of a view's topic."""

    topic: str
    partition: int
    key: bytes


class CommittedWatermark(NamedTuple):
    """Rows from `offset` on, of windows that ended by `until`, may have been made final."""

    offset: int
    until: int  # milliseconds since the epoch


class Tombstone(NamedTuple):
    """A tombstone to write."""

    row: RowKey
    offset: int  # of the row that it deletes
    final_value: bytes | None = None  # written first, if the row was never written as final


class RestoredRow(NamedTuple):
    """A row to write again, because the tombstone of an older row came after it."""

    row: RowKey
    value: bytes
    timestamp: int


class StateUpdate(NamedTuple):
    """A row to write again with its state."""

    row: RowKey
    offset: int  # of the row without the state
    value: bytes


def with_state(value: bytes, stage: int, returned: int = 0) -> bytes:
    """The encoded row with this state. `returned`: the offset of the tombstone it came after."""
    row = _STATE_SUFFIX.sub(b"", value)
    if stage != PROVISIONAL:
        row += b'%b"_state":"%b"' % (b"," * (row != b"{"), STATES[stage].encode())
    if returned:
        row += b'%b"_returned":%d' % (b"," * (row != b"{"), returned)
    return row + b"}"
