"""Sends rides to a collector, some of them late, twice or out of order, and knows what they make.

python simulator.py --seed 1 --events 3000 --rate 50 --truth truth.json
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from millstream.simulation import (
    Predicted,
    Simulation,
    Sliding,
    Tumbling,
    Window,
    grouped,
    late_records,
    main,
    state_of,
    window_json,
    with_outcome,
)

HALF_HOUR, HALF_MINUTE = Sliding(1_800_000, 5_000), Tumbling(30_000)
LATENESS = 60_000
EACH = 100  # riders
CITIES = {"Amsterdam": 17.0, "Copenhagen": 16.0, "Münster": 15.0, "Bogotá": 13.0}  # km/h


def ride(n: int, at: int, rng: Random) -> Mapping[str, Any]:
    """The n-th ride. Younger riders are faster.

    Speeds are multiples of 0.25 km/h, so their sums are exact in floating point, in any order.
    """
    (city,) = rng.choices(list(CITIES), [4, 3, 2, 1])
    age = rng.randrange(10, 80)
    speed = CITIES[city] + (40 - age) / 10 + rng.gauss(0, 3)
    return {
        "rider": rng.randrange(5_000),
        "age": age,
        "city": city,
        "speed": max(4, round(speed * 4)) / 4,
    }


def age_group(age: int) -> str:
    limits = {18: "under 18", 35: "18 to 34", 55: "35 to 54"}
    return next((group for limit, group in limits.items() if age < limit), "55 and over")


def truth(predicted: Sequence[Predicted]) -> dict[str, Any]:
    """The rows of the views and the late topic when all windows are closed."""
    windows = {"speed_by_age": HALF_HOUR, "speed_each_30s": HALF_MINUTE}
    return {
        "views": {
            "speed_by_age": _speeds(
                predicted, HALF_HOUR, "age_group", lambda event: age_group(event["age"])
            ),
            "speed_each_30s": _speeds(predicted, HALF_MINUTE, "city", lambda event: event["city"]),
            "each_hundred": _hundreds(with_outcome(predicted, "logged")),
        },
        "late": late_records(predicted, windows, LATENESS),
        "logged": len(predicted) - len(with_outcome(predicted, "duplicate")),
        "duplicates": len(with_outcome(predicted, "duplicate")),
    }


def _speeds(
    predicted: Sequence[Predicted],
    windows: Sliding,
    column: str,
    by: Callable[[Mapping[str, Any]], str],
) -> list[dict[str, Any]]:
    def row(window: Window, group: str, events: Sequence[Predicted]) -> dict[str, Any]:
        return {
            "window": window_json(window),
            column: group,
            "speed": sum(each.sending.event["speed"] for each in events) / len(events),
            "rides": len(events),
            "_state": state_of(window, events),
        }

    rows = grouped(predicted, windows, LATENESS, by)
    return [row(window, group, events) for (window, group), events in sorted(rows.items())]


def _hundreds(logged: Sequence[Predicted]) -> list[dict[str, Any]]:
    """Each hundred rides of a city, in the order of the log: no event is late for a count."""
    speeds: dict[str, list[float]] = {}
    rows = []
    for each in logged:
        city = each.sending.event["city"]
        ridden = speeds.setdefault(city, [])
        ridden.append(each.sending.event["speed"])
        if len(ridden) % EACH == 0:
            window = {"start": len(ridden) - EACH, "end": len(ridden)}
            speed = sum(ridden[-EACH:]) / EACH
            rows.append({"city": city, "window": window, "speed": speed})
    return rows


SIMULATION = Simulation(
    stream="rides",
    time="at",
    lateness=LATENESS,
    window=HALF_HOUR.size,
    generate=ride,
    truth=truth,
)

if __name__ == "__main__":
    main(SIMULATION, __doc__ or "")
