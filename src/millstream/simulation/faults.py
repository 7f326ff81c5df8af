"""Draws events from a seed, and decides in which order and how often they are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any, NamedTuple

FUTURE = 4_070_908_800_000  # 2099-01-01: the time of a wrong clock
# Makes the n-th event, which happens at a given time, with its own random numbers.
EventGenerator = Callable[[int, int, Random], Mapping[str, Any]]


class Drawn(NamedTuple):
    """An event, when it happens."""

    n: int
    at: int
    event: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SentEvent:
    """One event as it is sent."""

    id: str  # a duplicate has the same
    at: int  # its event time
    due: int  # when it is sent, in simulated time
    event: Mapping[str, Any]
    straggler: bool = False  # sent when all rows are final
    future: bool = False


@dataclass(frozen=True, slots=True)
class Faults:
    """The shares of the events that have each fault. No event has two faults.

    disordered   sent shortly after events that happened later
    late         sent within the lateness, usually after its window has ended
    too_late     sent when its windows are closed
    straggling   sent after all others: within the lateness, it corrects rows that were final
    duplicate    sent a second time with the same id, seven events later
    future       dated 2099, by a wrong clock
    """

    disordered: float = 0.0
    late: float = 0.0
    too_late: float = 0.0
    straggling: float = 0.0
    duplicate: float = 0.0
    future: float = 0.0

    def choose(self, rng: Random) -> str:
        """The name of a fault; empty for none."""
        drawn = rng.random()
        for field in fields(self):
            drawn -= getattr(self, field.name)
            if drawn < 0:
                return field.name
        return ""


# A few of each per hundred events, so that a short run has them all.
USUAL_FAULTS = Faults(
    disordered=0.1, late=0.04, too_late=0.02, straggling=0.02, duplicate=0.02, future=0.005
)


def draw(generate: EventGenerator, *, seed: int, count: int, start: int, span: int) -> list[Drawn]:
    """`count` events within `span`, in the order in which they happen."""
    times = Random(f"{seed}:times")
    moments = sorted(start + int(times.random() * span) for _ in range(count))
    return [
        Drawn(n, at, generate(n, at, Random(f"{seed}:event:{n}"))) for n, at in enumerate(moments)
    ]


def disorder(
    drawn: Sequence[Drawn], faults: Faults, *, seed: int, time: str, lateness: int, window: int
) -> list[SentEvent]:
    """The events in the order in which they are sent, with their time in the field `time`.

    `window` is the length of the longest window: after it and the lateness, events are too late.
    """
    sent: list[SentEvent] = []
    for n, at, event in drawn:
        rng = Random(f"{seed}:fault:{n}")
        fault = faults.choose(rng)
        sending = SentEvent(f"{seed}-{n}", at, at, {**event, time: at})
        match fault:
            case "disordered":
                sending = replace(sending, due=at + int(rng.random() * min(lateness, window) / 4))
            case "late":
                sending = replace(sending, due=at + int(rng.random() * lateness))
            case "too_late":
                sending = replace(sending, due=at + lateness + window + int(rng.random() * window))
            case "straggling":
                sending = replace(sending, straggler=True)
            case "duplicate":
                # Seven events later, or at the end: never before the original.
                again = drawn[min(n + 7, len(drawn) - 1)].at
                sent.append(replace(sending, due=again))
            case "future":
                sending = replace(sending, at=FUTURE, event={**event, time: FUTURE}, future=True)
        sent.append(sending)
    return in_order(sent)


def in_order(sendings: Iterable[SentEvent]) -> list[SentEvent]:
    """In the order of sending; stragglers last."""
    return sorted(sendings, key=lambda each: (each.straggler, each.due, each.id))
