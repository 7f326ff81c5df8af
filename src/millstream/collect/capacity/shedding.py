"""Drops events under pressure, for streams that allow it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec

from millstream.collect.formats.unpacked import UnpackedBody
from millstream.collect.raw_message import RawMessage
from millstream.expression.condition import compile_condition, event_columns
from millstream.pipeline.model import SHED_AT_RANDOM, Stream

MOST = 0.95  # the share of sheddable events that is dropped when the journal is full

_decode = msgspec.json.Decoder().decode


class Shedder:
    """Drops a share of a stream's events that grows with the pressure."""

    def __init__(self, stream: Stream, chance: Callable[[], float] = random.random) -> None:
        """`chance` returns uniform random numbers from 0 to 1."""
        assert stream.shed is not None
        self._threshold = stream.shed_at
        self._chance = chance
        self._condition = (
            None
            if stream.shed == SHED_AT_RANDOM
            else compile_condition(stream.shed, event_columns(stream.schema), canonical=False)
        )

    def share_kept(self, level: float) -> float:
        """The share of sheddable events to keep at that pressure (0 to 1)."""
        over = (level - self._threshold) / (1 - self._threshold)
        # Rounded as in the records' header, so that the header is exact.
        return 1.0 if over <= 0 else round(1 - MOST * min(1.0, over), 4)

    def choose(
        self, values: Sequence[bytes], share: float
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The indexes of the events to drop, and of those that are exempt."""
        shed: list[int] = []
        spared: list[int] = []
        for index, value in enumerate(values):
            if not self._is_sheddable(value):
                spared.append(index)
            elif self._chance() >= share:
                shed.append(index)
        return tuple(shed), tuple(spared)

    def _is_sheddable(self, value: bytes) -> bool:
        if self._condition is None:
            return True
        try:
            row = _decode(value)
            return isinstance(row, dict) and self._condition(row)
        except Exception:
            # The event is not validated yet, so a value can have a type that the condition does
            # not expect. Keep it: it will be rejected, and the sender sees why.
            return False


def shed(shedder: Shedder, message: RawMessage, unpacked: UnpackedBody, level: float) -> RawMessage:
    """The message, marked with the events that are dropped at that pressure."""
    share = shedder.share_kept(level)
    if share == 1:
        return message
    dropped, spared = shedder.choose(unpacked.values, share)
    return msgspec.structs.replace(message, sampled_rate=share, shed=dropped, spared=spared)
