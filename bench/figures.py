"""Computes latencies from times: quantiles, end to end and per step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Latency:
    """Quantiles in milliseconds."""

    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, nanoseconds: Sequence[int]) -> Latency | None:
        if not nanoseconds:
            return None
        ranked = sorted(nanoseconds)
        return cls(*(_quantile(ranked, share) / 1e6 for share in (0.5, 0.99, 1.0)))


def _quantile(ranked: Sequence[int], share: float) -> int:
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


@dataclass(frozen=True)
class Times:
    """For each measured event, the time of each step (nanoseconds since the epoch)."""

    due: Mapping[int, int]  # scheduled
    acked: Mapping[int, int]  # the sender got its answer
    collected: Mapping[int, int]  # the stream record's time-stamp
    resulted: Mapping[int, int]  # the result record's time-stamp; empty without analysis
    seen: Mapping[int, int]  # the client got the message


STEPS = {
    "collect": ("due", "collected"),
    "log + analyze": ("collected", "resulted"),
    "log + serve": ("resulted", "seen"),
    "POST answered": ("due", "acked"),
}


@dataclass(frozen=True)
class Figures:
    """The result of one view in one mode at one rate."""

    view: str
    mode: str
    rate: int
    sent: int
    missing: int  # events that no client message showed
    refused: int  # posts that were not answered with 200
    whole: Latency | None
    steps: dict[str, Latency | None] = field(default_factory=dict)
    cores: dict[str, float] = field(default_factory=dict)  # processor cores in use, by tier


def figures(
    view: str, mode: str, rate: int, times: Times, *, refused: int, cores: dict[str, float]
) -> Figures:
    """The figures of the given times."""
    ways = dict(STEPS)
    if not times.resulted:  # the stream itself: no step between its record and the client
        ways = {"collect": ways["collect"], "log + serve": ("collected", "seen")} | {
            "POST answered": ways["POST answered"]
        }
    return Figures(
        view,
        mode,
        rate,
        sent=len(times.due),
        missing=len(times.due.keys() - times.seen.keys()),
        refused=refused,
        whole=Latency.of(between(times.due, times.seen)),
        steps={
            name: Latency.of(between(getattr(times, start), getattr(times, stop)))
            for name, (start, stop) in ways.items()
        },
        cores=cores,
    )


def between(start: Mapping[int, int], stop: Mapping[int, int]) -> list[int]:
    """The duration for each event in both. With whole milliseconds it may be negative."""
    return [max(0, stop[event] - at) for event, at in start.items() if event in stop]
