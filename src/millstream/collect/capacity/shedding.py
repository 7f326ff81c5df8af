"""What is left out under pressure, of the streams that allow it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec

from millstream.collect.arrival import Arrival
from millstream.collect.formats.unpacked import Unpacked
from millstream.expression.condition import compile_condition, event_columns
from millstream.pipeline.model import SHED_AT_RANDOM, Stream

MOST = 0.95  # the share of what may be shed that is, when there is no room left at all

_decode = msgspec.json.Decoder().decode


class Shedder:
    """Drops a share of a stream's events that grows with the pressure."""

    def __init__(self, stream: Stream, chance: Callable[[], float] = random.random) -> None:
        """`chance` gives numbers from 0 to 1, each as likely as any other."""
        assert stream.shed is not None
        self._begins = stream.shed_at
        self._chance = chance
        self._matters_least = (
            None
            if stream.shed == SHED_AT_RANDOM
            else compile_condition(stream.shed, event_columns(stream.schema), canonical=False)
        )

    def share_kept(self, level: float) -> float:
        """Of the events that may be shed, the share to keep at that pressure (0 to 1)."""
        over = (level - self._begins) / (1 - self._begins)
        # Rounded as it is written on the records, so that these tell the truth.
        return 1.0 if over <= 0 else round(1 - MOST * min(1.0, over), 4)

    def choose(
        self, values: Sequence[bytes], share: float
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The places of the events to drop, and of those that could not have been dropped."""
        shed: list[int] = []
        spared: list[int] = []
        for index, value in enumerate(values):
            if not self._may_go(value):
                spared.append(index)
            elif self._chance() >= share:
                shed.append(index)
        return tuple(shed), tuple(spared)

    def _may_go(self, value: bytes) -> bool:
        if self._matters_least is None:
            return True
        try:
            row = _decode(value)
            return isinstance(row, dict) and self._matters_least(row)
        except Exception:
            # Nobody has checked it yet: a value can be of any type, which the condition does not
            # expect. It will be rejected, which somebody may want to see.
            return False


def shed(shedder: Shedder, arrival: Arrival, unpacked: Unpacked, level: float) -> Arrival:
    """The arrival, with what of it is dropped at that pressure."""
    share = shedder.share_kept(level)
    if share == 1:
        return arrival
    dropped, spared = shedder.choose(unpacked.values, share)
    return msgspec.structs.replace(arrival, sampled_rate=share, shed=dropped, spared=spared)
