"""Result rows as bytes: how new one is, and what is written of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from millstream.analyze.row_state.row_updates import with_state
from millstream.values.hidden_columns import KIND, RETURNED, REVISION, STATE
from millstream.values.ledger_entry import Amount, add, negate
from millstream.values.row_version import CORRECTED, FINAL, PROVISIONAL, RETRACTION, STATES


class Stage(IntEnum):
    """What a row says of itself: it only goes up."""

    PROVISIONAL = PROVISIONAL
    FINAL = FINAL
    CORRECTED = CORRECTED


class Mark(NamedTuple):
    """How new a row is; see `store.life`."""

    revision: int
    returned: int = 0


_DECODER = msgspec.json.Decoder(dict[str, Any])
_EXACT = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)
_ENCODER = msgspec.json.Encoder(decimal_format="number")


def decode(value: bytes, *, exact: bool = False) -> dict[str, Any]:
    """The row; with `exact`, its fractions as decimals, digit by digit."""
    return (_EXACT if exact else _DECODER).decode(value)


def mark(row: Mapping[str, Any]) -> Mark | None:
    """How new the row is; None if it does not say, so that nothing can be told of it."""
    revision, returned = row.get(REVISION), row.get(RETURNED, 0)
    if type(revision) is not int:
        return None
    return Mark(revision, returned if type(returned) is int else 0)


def stage(row: Mapping[str, Any]) -> Stage:
    state = row.get(STATE)
    return Stage(STATES.index(state)) if state in STATES else Stage.PROVISIONAL


def stateless(value: bytes, returned: int) -> bytes:
    """The row as the query gave it."""
    return with_state(value, Stage.PROVISIONAL, returned)


def staged(value: bytes, at: Stage) -> bytes:
    """The row, saying what it is."""
    return value if at is Stage.PROVISIONAL else _with(value, STATE, STATES[at])


def retraction(value: bytes) -> bytes:
    """The row, taken back."""
    return _with(value, KIND, RETRACTION)


def difference(value: bytes, before: bytes | None, additive: Iterable[str]) -> bytes:
    """The row with only what is new in its counts and sums: all of these add up to the row."""
    if before is None:
        return value
    row, old = decode(value, exact=True), decode(before, exact=True)
    for name in additive:
        row[name] = _less(row.get(name), old.get(name))
    return _ENCODER.encode(row)


def amounts(value: bytes, names: Iterable[str]) -> dict[str, Amount]:
    """The row's amounts; what is no number (NULL, not a number) counts nothing."""
    return amounts_of(decode(value, exact=True), names)


def amounts_of(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, Amount]:
    """The same of a row that is decoded, exactly."""
    return {name: row[name] if is_amount(row.get(name)) else 0 for name in names}


def _less(new: Any, old: Any) -> Any:
    if not is_amount(new) or not is_amount(old):
        return new
    return add(new, negate(old))


def is_amount(value: Any) -> bool:
    """Whether it can be added up."""
    return type(value) is int or (isinstance(value, Decimal) and value.is_finite())


def _with(value: bytes, name: str, text: str) -> bytes:
    return value[:-1] + f',"{name}":"{text}"}}'.encode()
