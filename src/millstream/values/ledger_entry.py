"""An entry of a view's ledger, as its topic stores it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any, Literal

import msgspec

EntryKind = Literal["assertion", "retraction"]
Amount = int | Decimal
Amounts = dict[str, Amount]

# Decimal addition is exact, so the order of adding does not change the sum.
_EXACT = Context(prec=min(MAX_PREC, 2000), Emax=MAX_EMAX, Emin=MIN_EMIN)


class LedgerEntry(msgspec.Struct, frozen=True):
    """A change of the sums of a key: an assertion adds its amounts, a retraction subtracts them."""

    id: str
    key: list[Any]  # the values of the view's key columns
    kind: EntryKind
    amounts: Amounts
    reason: list[str]  # the ids of the late events that caused a correction, if known
    at: str  # when it was written, in RFC 3339


_DECODER = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)
_ENCODER = msgspec.json.Encoder(decimal_format="number")


def encode(entry: LedgerEntry) -> bytes:
    return _ENCODER.encode(entry)


def decode(value: bytes) -> LedgerEntry:
    """The entry in a record; ValueError if there is none."""
    return msgspec.convert(_DECODER.decode(value), LedgerEntry)


def identify(*parts: str) -> str:
    """A deterministic id for the parts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def add(one: Amount, other: Amount) -> Amount:
    if isinstance(one, int) and isinstance(other, int):
        return one + other
    return _EXACT.add(Decimal(one), Decimal(other))


def negate(amount: Amount) -> Amount:
    return -amount if isinstance(amount, int) else amount.copy_negate()


def sums(entries: Iterable[LedgerEntry]) -> dict[str, tuple[list[Any], Amounts]]:
    """The amounts of each key, by the key as JSON."""
    found: dict[str, tuple[list[Any], Amounts]] = {}
    for entry in entries:
        _, total = found.setdefault(name_of(entry.key), (entry.key, {}))
        add_entry(total, entry.kind, entry.amounts)
    return found


def name_of(key: list[Any]) -> str:
    """A key as JSON: entries with the same text are summed."""
    return msgspec.json.encode(key).decode()


def add_entry(total: Amounts, kind: EntryKind, amounts: Mapping[str, Amount]) -> None:
    """Add an entry's amounts to the sums of its key."""
    for name, amount in amounts.items():
        signed = amount if kind == "assertion" else negate(amount)
        total[name] = add(total.get(name, 0), signed)
