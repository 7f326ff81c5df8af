"""The figures of the benchmark."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench.figures import Figures, Latency, Times, figures
from bench.load import KEYS
from bench.observe import Sightings
from hypothesis import given
from hypothesis import strategies as st

from bench import picture, report

MS = 1_000_000


def test_quantiles_are_values_that_were_measured() -> None:
    assert Latency.of([n * MS for n in range(1, 101)]) == Latency(50, 99, 100)
    assert Latency.of([7 * MS]) == Latency(7, 7, 7)
    assert Latency.of([]) is None


def test_steps_add_up_to_the_whole_and_missing_events_are_counted() -> None:
    got = figures(
        "stateless",
        "real_time",
        100,
        Times(
            due={1: 0, 2: 0},
            acked={1: 3 * MS, 2: 3 * MS},
            collected={1: 1 * MS, 2: 1 * MS},
            resulted={1: 5 * MS},
            seen={1: 8 * MS},
        ),
        refused=0,
        cores={},
    )
    assert (got.sent, got.missing, got.whole) == (2, 1, Latency(8, 8, 8))
    assert [step.p50 for step in got.steps.values() if step] == [1, 4, 3, 3]


def test_a_row_shows_every_event_of_its_group_up_to_its_newest() -> None:
    seen = Sightings()
    seen.add(5, 100)
    seen.add(5 + 2 * KEYS, 200)  # a batch with two events of the group
    seen.add(6, 300)
    events = [5, 5 + KEYS, 5 + 2 * KEYS, 5 + 3 * KEYS, 6]
    assert seen.first_seen(events, grouped=True) == {
        5: 100,
        5 + KEYS: 200,
        5 + 2 * KEYS: 200,
        6: 300,
    }
    assert seen.first_seen(events, grouped=False) == {5: 100, 5 + 2 * KEYS: 200, 6: 300}


@given(st.permutations(range(0, 12 * KEYS, KEYS // 2)))
def test_both_measures_agree_where_each_event_has_its_own_row(order: list[int]) -> None:
    seen = Sightings()
    for at, event in enumerate(sorted(order)):
        seen.add(event, at)
    assert seen.first_seen(order, grouped=True) == seen.first_seen(order, grouped=False)


@pytest.fixture
def measured() -> list[Figures]:
    def one(mode: str, p50: float) -> Figures:
        whole = Latency(p50, 2 * p50, 3 * p50)
        return Figures("windowed", mode, 1_000, 10, 0, 0, whole, {"collect": whole}, {"serve": 0.5})

    return [one("real_time", 10), one("micro_batch", 400)]


def test_the_table_says_by_how_much_micro_batch_is_slower(measured: list[Figures]) -> None:
    text = report.tables(measured)
    assert "| 10.0 | 20.0 | 30.0" in text
    assert "40×" in text
    assert "20 events measured, 0 missing, 0 posts refused." in text


def test_only_the_measured_part_of_the_document_is_replaced(
    measured: list[Figures], tmp_path: Path
) -> None:
    document = tmp_path / "performance.md"
    document.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.write(document, measured, "How.")
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "performance.svg" in text


def test_the_picture_is_valid_and_orders_latencies_from_left_to_right(
    measured: list[Figures],
) -> None:
    root = ElementTree.fromstring(picture.draw(measured))
    circles = [float(c.attrib["cx"]) for c in root.iter("{http://www.w3.org/2000/svg}circle")]
    assert len(circles) == 2
    assert circles[0] < circles[1]
