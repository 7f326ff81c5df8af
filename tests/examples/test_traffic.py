"""The cars of the traffic example drive as their routes say, and report what is true."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from examples.traffic.car import ahead_of
from examples.traffic.city import BLOCK, CITIES, CONDITIONS, GRID, cars, condition_of
from examples.traffic.simulator import SIMULATION

from millstream.simulation import predict

START = 1_763_300_040_000
SECOND = 1_000


def test_what_a_car_reports_depends_on_the_car_and_the_time_alone() -> None:
    car = cars()["car-07"]
    assert car.report(START) == car.report(START) != car.report(START + SECOND)
    assert all(name == car.name for name, car in cars().items())


def test_a_car_drives_its_route_in_order_and_never_jumps() -> None:
    for car in cars().values():
        reports = [car.report(START + n * SECOND) for n in range(600)]
        for before, after in pairwise(reports):
            assert after["segment"] in car.ahead(before["segment"], 2)
            assert abs(after["lat"] - before["lat"]) + abs(after["lon"] - before["lon"]) < BLOCK / 5


def test_cars_stay_in_their_city() -> None:
    for car in cars().values():
        lat, lon = CITIES[car.city]
        for n in range(0, 600, 7):
            report = car.report(START + n * SECOND)
            assert abs(report["lat"] - lat) <= BLOCK * GRID / 2
            assert abs(report["lon"] - lon) <= BLOCK * GRID / 2


def test_a_route_is_a_round_trip_over_segments_that_meet() -> None:
    for car in cars().values():
        route = car.route
        assert car.ahead(route[-1], 2) == [route[-1], route[0]]
        assert car.ahead(route[0], 1_000) == route
        for one, other in zip(route, car.ahead(route[1], len(route)), strict=True):
            assert set(one.split("-")) & set(other.split("-"))


def test_a_car_is_slow_on_a_bad_road() -> None:
    speeds: dict[str, list[float]] = {}
    for car in cars().values():
        for n in range(0, 3_600, 60):
            report = car.report(START + n * SECOND)
            assert report["condition"] == condition_of(
                car.city, report["segment"], START + n * SECOND
            )
            speeds.setdefault(report["condition"], []).append(report["speed"])
    assert speeds.keys() == CONDITIONS.keys()
    assert max(speeds["jam"]) < min(speeds["ice"]) < max(speeds["rain"]) < max(speeds["clear"])


def test_the_truth_counts_each_report_once_in_each_view() -> None:
    sent = SIMULATION.sendings(seed=1, count=600, start=START, span=1_800_000)
    truth = SIMULATION.truth(list(predict(sent)))
    late = Counter(each["reason"] for each in truth["late"].values())
    views = truth["views"]
    counted = truth["logged"] - late["future"]
    assert len(views["sightings"]) == sum(row["reports"] for row in views["roads"]) == counted
    assert sum(row["reports"] for row in views["speeds"]) == counted - late["late"]
    assert [row["car"] for row in views["my_car"]] == sorted(cars())


def test_a_sighting_does_not_say_which_car_it_was() -> None:
    sent = SIMULATION.sendings(seed=1, count=50, start=START, span=1_800_000)
    identity = {"car", "owner", "make", "model"}
    for row in SIMULATION.truth(list(predict(sent)))["views"]["sightings"]:
        assert not row.keys() & identity


def test_the_filter_has_the_segment_of_the_car_and_the_next_three() -> None:
    car = cars()["car-07"]
    first, *_ = route = car.route
    expected = ", ".join(f"'{segment}'" for segment in route[:4])
    assert ahead_of(car, first) == f"city = '{car.city}' AND segment IN ({expected})"
