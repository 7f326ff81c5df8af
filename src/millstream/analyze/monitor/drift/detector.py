"""Compares the fields of one stream with how they were before: events in, drifts out. No Kafka."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import msgspec

from millstream.analyze.monitor.drift.shape import (
    SHIFTED,
    STEADY,
    Kind,
    Value,
    describe,
    distance,
    is_identifier,
)
from millstream.pipeline.model import Stream
from millstream.schema import Primitive, Type
from millstream.schema.types import INTEGERS
from millstream.values.report import FieldDrift

SAMPLE = 500  # events in a sample
REFERENCE = 8  # earlier samples that it is compared with
_FEWEST = 2  # of those, before a drift is reported
_LONGEST_WORD = 60


class DriftDetector:
    """Detects drift in the fields of one stream. Memory is bounded by the number of fields."""

    def __init__(self, stream: Stream) -> None:
        kinds = {field.name: _kind(field.type) for field in stream.schema.fields}
        self._fields = [
            _Field(name, kind) for name, kind in kinds.items() if kind and name != stream.key
        ]
        self._stream = stream.name
        self._decode = _decoder([field.name for field in self._fields])
        self._count = 0

    def observe(self, values: Iterable[bytes | None], now: int) -> list[FieldDrift]:
        """Process more events, at `now` milliseconds; return the fields that have just shifted."""
        shifted = []
        for value in values:
            try:
                event = self._decode(value or b"")
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue  # a stream may keep events that do not fit its schema
            for field, found in zip(self._fields, event, strict=True):
                field.sample.append(field.read(found))
            self._count += 1
            if self._count == SAMPLE:
                self._count = 0
                shifted += [drift for field in self._fields if (drift := self._check(field, now))]
        return shifted

    def shifted(self) -> list[FieldDrift]:
        """The fields whose values have shifted and not settled yet."""
        return [field.drift for field in self._fields if field.drift is not None]

    def _check(self, field: _Field, now: int) -> FieldDrift | None:
        sample, field.sample = field.sample, []
        reference = list(chain.from_iterable(field.reference))
        enough = len(field.reference) >= _FEWEST
        field.reference.append(sample)
        if not enough or is_identifier(field.kind, reference):
            return None
        score = distance(field.kind, reference, sample)
        if score < (SHIFTED if field.drift is None else STEADY):
            field.drift = None
            return None
        if field.drift is not None:
            return None
        before, after = describe(field.kind, reference), describe(field.kind, sample)
        field.drift = FieldDrift(self._stream, field.name, now, round(score, 2), before, after)
        return field.drift


class _Field:
    def __init__(self, name: str, kind: Kind) -> None:
        self.name, self.kind = name, kind
        self.sample: list[Value] = []
        self.reference: deque[list[Value]] = deque(maxlen=REFERENCE)
        self.drift: FieldDrift | None = None  # since it shifted, until it settles

    def read(self, value: object) -> Value:
        if value is None:
            return None
        if self.kind == "words":
            return str(value)[:_LONGEST_WORD]
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return None
        return number if math.isfinite(number) else None


def _kind(of: Type) -> Kind | None:
    """How a field's values are compared; None if they are not."""
    if not isinstance(of, Primitive):
        return None
    if of.name in INTEGERS or of.name in ("float", "double") or of.decimal:
        return "numbers"
    return "words" if of.name in ("string", "boolean") else None


def _decoder(names: list[str]) -> Any:
    """A function that reads just these fields of an event, in this order, of any type."""
    attributes = {f"f{index}": name for index, name in enumerate(names)}
    fields: list[Any] = [(attribute, Any, None) for attribute in attributes]
    event = msgspec.defstruct("Watched", fields, rename=attributes, gc=False)
    decode = msgspec.json.Decoder(event).decode

    def read(value: bytes) -> Iterator[Any]:
        found = decode(value)
        return (getattr(found, attribute) for attribute in attributes)

    return read
