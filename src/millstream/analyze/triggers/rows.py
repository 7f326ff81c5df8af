"""Encoded result rows: their version, their stage, and how they are changed before writing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from millstream.values.hidden_columns import KIND, RETURNED, REVISION, STATE
from millstream.values.ledger_entry import Amount, add, negate
from millstream.values.row_version import CORRECTED, FINAL, PROVISIONAL, RETRACTION, STATES


class Stage(IntEnum):
    """A row's state. It only advances."""

    PROVISIONAL = PROVISIONAL
    FINAL = FINAL
    CORRECTED = CORRECTED


class Version(NamedTuple):
    """How new a row of a grouped view is; see `values.row_version`."""

    revision: int
    returned: int = 0


_DECODER = msgspec.json.Decoder(dict[str, Any])
_EXACT = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)
_ENCODER = msgspec.json.Encoder(decimal_format="number")


def decode(value: bytes, *, exact: bool = False) -> dict[str, Any]:
    """The row; with `exact`, fractions are decimals with the same digits."""
    return (_EXACT if exact else _DECODER).decode(value)


def version(row: Mapping[str, Any]) -> Version | None:
    """How new the row is; None if it has no revision."""
    revision, returned = row.get(REVISION), row.get(RETURNED, 0)
    if type(revision) is not int:
        return None
    return Version(revision, returned if type(returned) is int else 0)


def stage(row: Mapping[str, Any]) -> Stage:
    state = row.get(STATE)
    return Stage(STATES.index(state)) if state in STATES else Stage.PROVISIONAL


def with_stage(value: bytes, at: Stage) -> bytes:
    """The row, which has no stage yet, with this one."""
    return value if at is Stage.PROVISIONAL else _with(value, STATE, STATES[at])


def retraction(value: bytes) -> bytes:
    """The row, marked as taken back."""
    return _with(value, KIND, RETRACTION)


def difference(value: bytes, before: bytes | None, additive: Iterable[str]) -> bytes:
    """The row with only what is new in its counts and sums. All differences add up to the row."""
    if before is None:
        return value
    row, old = decode(value, exact=True), decode(before, exact=True)
    for name in additive:
        row[name] = _subtract(row.get(name), old.get(name))
    return _ENCODER.encode(row)


def amounts(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, Amount]:
    """The amounts of a row that was decoded exactly; 0 for what is no number (NULL, NaN)."""
    return {name: row[name] if is_amount(row.get(name)) else 0 for name in names}


def is_amount(value: Any) -> bool:
    """Whether the value can be added up."""
    return type(value) is int or (isinstance(value, Decimal) and value.is_finite())


def _subtract(new: Any, old: Any) -> Any:
    if not is_amount(new) or not is_amount(old):
        return new
    return add(new, negate(old))


def _with(value: bytes, name: str, text: str) -> bytes:
    return value[:-1] + f',"{name}":"{text}"}}'.encode()
