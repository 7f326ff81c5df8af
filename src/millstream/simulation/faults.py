"""What happens, drawn from a seed, and in which order and how often it is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any, NamedTuple

FUTURE = 4_070_908_800_000  # 2099-01-01: what a clock gone wrong may say
# The n-th event that happens at a time, drawn from randomness of its own.
World = Callable[[int, int, Random], Mapping[str, Any]]


class Drawn(NamedTuple):
    """Something that happened."""

    n: int
    at: int
    event: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sending:
    """One event as it is sent."""

    id: str  # a copy has the same
    at: int  # when it happened, by its own account
    due: int  # when it is sent, on the clock of what happens
    event: Mapping[str, Any]
    straggler: bool = False  # sent when all rows are final
    future: bool = False


@dataclass(frozen=True, slots=True)
class Faults:
    """Which shares of the events go wrong, and how. No event has two faults.

    disordered   sent some moments after those that happened later
    late         sent within the lateness, as a rule after its window ended
    too_late     sent when its windows are closed for good
    straggling   sent after all others: those within the lateness correct rows that were final
    duplicate    sent a second time with the same id, seven events later
    future       dated 2099, by a clock gone wrong
    """

    disordered: float = 0.0
    late: float = 0.0
    too_late: float = 0.0
    straggling: float = 0.0
    duplicate: float = 0.0
    future: float = 0.0

    def of(self, rng: Random) -> str:
        drawn = rng.random()
        for field in fields(self):
            drawn -= getattr(self, field.name)
            if drawn < 0:
                return field.name
        return ""


# A few of each in any hundred events, so that a short run shows them all.
USUAL = Faults(
    disordered=0.1, late=0.04, too_late=0.02, straggling=0.02, duplicate=0.02, future=0.005
)


def draw(world: World, *, seed: int, count: int, start: int, span: int) -> list[Drawn]:
    """`count` events spread over `span`, in the order in which they happen."""
    times = Random(f"{seed}:times")
    moments = sorted(start + int(times.random() * span) for _ in range(count))
    return [Drawn(n, at, world(n, at, Random(f"{seed}:event:{n}"))) for n, at in enumerate(moments)]


def disorder(
    drawn: Sequence[Drawn], faults: Faults, *, seed: int, time: str, lateness: int, window: int
) -> list[Sending]:
    """The events in the order in which they are sent, their time in the field `time`.

    `window` is the length of the longest window, after which (and the lateness) it is too late.
    """
    sent: list[Sending] = []
    for n, at, event in drawn:
        rng = Random(f"{seed}:fault:{n}")
        fault = faults.of(rng)
        sending = Sending(f"{seed}-{n}", at, at, {**event, time: at})
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
                # Seven events on, or at the end: never before the first.
                again = drawn[min(n + 7, len(drawn) - 1)].at
                sent.append(replace(sending, due=again))
            case "future":
                sending = replace(sending, at=FUTURE, event={**event, time: FUTURE}, future=True)
        sent.append(sending)
    return in_order(sent)


def in_order(sendings: Iterable[Sending]) -> list[Sending]:
    """As they are sent: what flows, then the stragglers."""
    return sorted(sendings, key=lambda each: (each.straggler, each.due, each.id))
