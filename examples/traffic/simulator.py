"""Sends what cars report to a collector, some of it late or twice, and knows what it makes.

python -m examples.traffic.simulator --seed 1 --events 3000 --rate 50 --truth truth.json
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from examples.traffic.city import cars

from millstream.simulation import (
    Predicted,
    Simulation,
    Tumbling,
    grouped,
    iso_time,
    late_records,
    main,
    state_of,
    window_json,
    with_outcome,
)

FIVE_MINUTES = Tumbling(300_000)
LATENESS = 300_000
Row = dict[str, Any]


def position(n: int, at: int, rng: Random) -> Mapping[str, Any]:
    """The n-th report: of some car, where it is at that time."""
    return rng.choice(list(cars().values())).report(at)


def truth(predicted: Sequence[Predicted]) -> dict[str, Any]:
    """The rows of the views and the late topic when all windows are closed."""
    logged = [each.sending.event for each in with_outcome(predicted, "logged")]
    return {
        "views": {
            "speeds": _speeds(predicted),
            "roads": _roads(logged),
            "my_car": _newest_of_each_car(logged),
            "sightings": [_sighting(event) for event in logged],
        },
        "late": late_records(predicted, {"speeds": FIVE_MINUTES}, LATENESS),
        "logged": len(predicted) - len(with_outcome(predicted, "duplicate")),
        "duplicates": len(with_outcome(predicted, "duplicate")),
    }


def _newest_of_each_car(events: Sequence[Mapping[str, Any]]) -> list[Row]:
    newest: dict[str, Mapping[str, Any]] = {}
    for event in sorted(events, key=lambda each: each["at"]):
        newest[event["car"]] = event
    return [_without(newest[car], "condition") for car in sorted(newest)]


def _sighting(event: Mapping[str, Any]) -> Row:
    return _without(event, "car", "owner", "make", "model")


def _roads(events: Sequence[Mapping[str, Any]]) -> list[Row]:
    by_road: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for event in events:
        by_road.setdefault((event["city"], event["segment"]), []).append(event)

    def row(reports: Sequence[Mapping[str, Any]]) -> Row:
        newest = max(reports, key=lambda each: (each["at"], each["car"]))
        return {**_sighting(newest), "reports": len(reports)}

    return [row(reports) for _, reports in sorted(by_road.items())]


def _speeds(predicted: Sequence[Predicted]) -> list[Row]:
    rows = grouped(predicted, FIVE_MINUTES, LATENESS, lambda event: str(event["city"]))
    return [
        {
            "window": window_json(window),
            "city": city,
            "speed": sum(each.sending.event["speed"] for each in events) / len(events),
            "reports": len(events),
            "_state": state_of(window, events),
        }
        for (window, city), events in sorted(rows.items())
    ]


def _without(event: Mapping[str, Any], *columns: str) -> Row:
    """The event as in a row, but for these columns."""
    row = {name: value for name, value in event.items() if name not in columns}
    return {**row, "at": iso_time(row["at"])}


SIMULATION = Simulation(
    stream="positions",
    time="at",
    lateness=LATENESS,
    window=FIVE_MINUTES.size,
    generate=position,
    truth=truth,
)

if __name__ == "__main__":
    main(SIMULATION, __doc__ or "")
