"""One stream's fields, held against how they were: events in, drifts out. Knows no Kafka."""

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
    names_things,
)
from millstream.pipeline.model import Stream
from millstream.schema import Primitive, Type
from millstream.schema.types import INTEGERS
from millstream.values.report import FieldDrift

SAMPLE = 500  # events that make a shape
REFERENCE = 8  # samples before it, that it is held against
_FEWEST = 2  # of those, before anything is said
_LONGEST_WORD = 60


class DriftDetector:
    """Watches the fields of one stream. One pass, memory bounded by the number of fields."""

    def __init__(self, stream: Stream) -> None:
        kinds = {field.name: _kind(field.type) for field in stream.schema.fields}
        self._fields = [
            _Field(name, kind) for name, kind in kinds.items() if kind and name != stream.key
        ]
        self._stream = stream.name
        self._decode = _decoder([field.name for field in self._fields])
        self._taken = 0

    def take(self, values: Iterable[bytes | None], now: int) -> list[FieldDrift]:
        """More events, at `now` milliseconds; the fields that have just shifted."""
        begun = []
        for value in values:
            try:
                event = self._decode(value or b"")
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue  # a stream may keep what does not fit its schema
            for field, found in zip(self._fields, event, strict=True):
                field.sample.append(field.read(found))
            self._taken += 1
            if self._taken == SAMPLE:
                self._taken = 0
                begun += [drift for field in self._fields if (drift := self._judge(field, now))]
        return begun

    def shifted(self) -> list[FieldDrift]:
        """The fields that are of another shape than lately."""
        return [field.drift for field in self._fields if field.drift is not None]

    def _judge(self, field: _Field, now: int) -> FieldDrift | None:
        sample, field.sample = field.sample, []
        reference = list(chain.from_iterable(field.reference))
        enough = len(field.reference) >= _FEWEST
        field.reference.append(sample)
        if not enough or names_things(field.kind, reference):
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
        self.drift: FieldDrift | None = None  # since it shifted, until it has come to rest

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
    """What a field's shape is made of; None if it has none that we follow."""
    if not isinstance(of, Primitive):
        return None
    if of.name in INTEGERS or of.name in ("float", "double") or of.decimal:
        return "numbers"
    return "words" if of.name in ("string", "boolean") else None


def _decoder(names: list[str]) -> Any:
    """Reads just these fields of an event, in their order, whatever is in them."""
    attributes = {f"f{index}": name for index, name in enumerate(names)}
    fields: list[Any] = [(attribute, Any, None) for attribute in attributes]
    event = msgspec.defstruct("Watched", fields, rename=attributes, gc=False)
    decode = msgspec.json.Decoder(event).decode

    def read(value: bytes) -> Iterator[Any]:
        found = decode(value)
        return (getattr(found, attribute) for attribute in attributes)

    return read
