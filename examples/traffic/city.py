"""The simulated world: four cities with a grid of streets, and cars that drive around in them.

Where a car is depends on the car and the time alone, and so does the condition of a road. So
anybody can compute what a car must have reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, NamedTuple

CITIES = {
    "Lisbon": (38.715, -9.140),
    "Montréal": (45.510, -73.570),
    "Nairobi": (-1.285, 36.820),
    "Osaka": (34.690, 135.500),
}
GRID = 7  # crossings in each direction; a crossing is called by its letter and number, as in B3
BLOCK = 0.004  # degrees between two crossings, about 400 m
CARS = 40
MAKES = {
    "Volvo": ("V60", "XC40"),
    "Toyota": ("Corolla", "Yaris"),
    "Renault": ("Clio", "Mégane"),
    "Škoda": ("Octavia", "Fabia"),
}
OWNERS = ("Ana", "Benoît", "Chiara", "Dmitri", "Emeka", "Fumiko", "Grace", "Héctor")
BLOCK_SECONDS = 20.0  # that a car needs for one segment
WEATHER_MILLISECONDS = 600_000  # that a condition lasts
# Each condition with its share of all roads, and the speed that cars drive in it, in km/h.
CONDITIONS = {"clear": (12, 50.0), "rain": (4, 35.0), "ice": (1, 20.0), "jam": (2, 8.0)}


class Crossing(NamedTuple):
    column: int
    row: int

    def __str__(self) -> str:
        return f"{'ABCDEFG'[self.column]}{self.row + 1}"


@dataclass(frozen=True, slots=True)
class Car:
    """A car, and the round trip that it drives for ever."""

    name: str
    owner: str
    make: str
    model: str
    city: str
    crossings: tuple[Crossing, ...]  # the last is next to the first
    offset: float  # seconds by which it is ahead of a car that was at the first crossing in 1970

    @property
    def route(self) -> list[str]:
        """The segments of its round trip, in order."""
        after = (*self.crossings[1:], self.crossings[0])
        return [segment_name(*ends) for ends in zip(self.crossings, after, strict=True)]

    def ahead(self, segment: str, count: int) -> list[str]:
        """This segment of its route and the ones that come next."""
        route = self.route
        start = route.index(segment)
        return [route[(start + n) % len(route)] for n in range(min(count, len(route)))]

    def report(self, at: int) -> dict[str, Any]:
        """What the car reports at this time, in milliseconds since the epoch."""
        blocks = (at / 1000 + self.offset) / BLOCK_SECONDS % len(self.crossings)
        leg = int(blocks)
        start, end = self.crossings[leg], self.crossings[(leg + 1) % len(self.crossings)]
        segment, way = segment_name(start, end), blocks - leg
        condition = condition_of(self.city, segment, at)
        lat, lon = CITIES[self.city]
        column = start.column + (end.column - start.column) * way
        row = start.row + (end.row - start.row) * way
        return {
            "car": self.name,
            "owner": self.owner,
            "make": self.make,
            "model": self.model,
            "city": self.city,
            "segment": segment,
            "lat": round(lat - (row - GRID // 2) * BLOCK, 5),
            "lon": round(lon + (column - GRID // 2) * BLOCK, 5),
            "speed": self._speed(condition, at),
            "condition": condition,
        }

    def _speed(self, condition: str, at: int) -> float:
        """A multiple of 0.25 km/h, so that sums are exact in floating point, in any order."""
        differs = Random(f"{self.name}:speed:{at}").uniform(0.8, 1.2)
        return round(CONDITIONS[condition][1] * differs * 4) / 4


def segment_name(one: Crossing, other: Crossing) -> str:
    """The same in both directions."""
    return "-".join(map(str, sorted((one, other))))


def condition_of(city: str, segment: str, at: int) -> str:
    shares = [share for share, _ in CONDITIONS.values()]
    return _draw_condition(city, segment, at // WEATHER_MILLISECONDS, tuple(shares))


@cache
def _draw_condition(city: str, segment: str, period: int, shares: tuple[int, ...]) -> str:
    return Random(f"{city}:{segment}:{period}").choices(list(CONDITIONS), shares)[0]


@cache
def cars() -> Mapping[str, Car]:
    """All cars by their names."""
    made = [_make_car(n) for n in range(1, CARS + 1)]
    return {car.name: car for car in made}


def _make_car(number: int) -> Car:
    rng = Random(f"car {number}")
    make = rng.choice(list(MAKES))
    return Car(
        name=f"car-{number:02}",
        owner=f"{rng.choice(OWNERS)} {number}",
        make=make,
        model=rng.choice(MAKES[make]),
        city=list(CITIES)[number % len(CITIES)],
        crossings=_round_trip(rng),
        offset=rng.uniform(0, 3600),
    )


def _round_trip(rng: Random) -> tuple[Crossing, ...]:
    """The crossings around a rectangle, clockwise."""
    left, right = sorted(rng.sample(range(GRID), 2))
    top, bottom = sorted(rng.sample(range(GRID), 2))
    return (
        *(Crossing(column, top) for column in range(left, right)),
        *(Crossing(right, row) for row in range(top, bottom)),
        *(Crossing(column, bottom) for column in range(right, left, -1)),
        *(Crossing(left, row) for row in range(bottom, top, -1)),
    )
