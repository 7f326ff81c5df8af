"""Simulated events: the same for the same seed, and predicted by the rules of time."""

from __future__ import annotations

import argparse
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import MillstreamError
from millstream.simulation import (
    FUTURE,
    EventSender,
    Faults,
    Predicted,
    SentEvent,
    Sliding,
    Tumbling,
    Window,
    disorder,
    draw,
    grouped,
    joined,
    late_records,
    predict,
    state_of,
    with_outcome,
)
from millstream.simulation.command import Pace

MINUTE = 60_000
ALL = Faults(disordered=0.1, late=0.1, too_late=0.1, straggling=0.1, duplicate=0.1, future=0.05)


def world(n: int, at: int, rng: Random) -> dict[str, Any]:
    return {"n": n, "colour": rng.choice(["red", "blue"])}


def sendings(seed: int = 1, faults: Faults = ALL, count: int = 400) -> list[SentEvent]:
    drawn = draw(world, seed=seed, count=count, start=0, span=30 * MINUTE)
    return disorder(drawn, faults, seed=seed, time="at", lateness=5 * MINUTE, window=MINUTE)


def sending(at: int, name: str = "", **more: Any) -> SentEvent:
    return SentEvent(name or str(at), at, at, {"at": at}, **more)


def test_the_same_seed_sends_the_same_and_another_one_does_not() -> None:
    assert sendings(1) == sendings(1) != sendings(2)


def test_without_faults_everything_is_sent_once_and_in_order() -> None:
    sent = sendings(faults=Faults())
    assert [each.event["n"] for each in sent] == list(range(400))
    assert [each.at for each in sent] == sorted(each.at for each in sent)
    assert {each.watermark for each in predict(sent)} == {None}


def test_every_fault_is_there_in_its_share() -> None:
    sent = sendings(count=4_000)
    predicted = list(predict(sent))
    assert 300 < len(with_outcome(predicted, "duplicate")) < 500
    future = with_outcome(predicted, "future")
    assert 150 < len(future) < 250
    assert {each.sending.event["at"] for each in future} == {FUTURE}
    late = late_records(predicted, {"minutes": Tumbling(MINUTE)}, 5 * MINUTE)
    assert Counter(entry["reason"] for entry in late.values())["late"] > 350
    corrects = [
        each
        for each in with_outcome(predicted, "logged")
        for window in Tumbling(MINUTE).of(each.sending.at)
        if each.corrects(window) and not each.is_late_for(window, 5 * MINUTE)
    ]
    assert len(corrects) > 300


def test_stragglers_come_last() -> None:
    kinds = [each.straggler for each in sendings()]
    assert kinds == sorted(kinds)
    assert len(set(kinds)) == 2


def test_one_from_the_future_moves_no_watermark() -> None:
    predicted = list(predict([sending(5), sending(FUTURE, future=True), sending(6), sending(4)]))
    assert [each.watermark for each in predicted] == [None, None, None, 6]


def test_an_event_is_held_against_the_newest_one_before_it() -> None:
    predicted = list(predict([sending(5), sending(9), sending(7), sending(9, "again"), sending(8)]))
    assert [each.watermark for each in predicted] == [None, None, 9, None, 9]


def test_a_copy_is_known_by_its_id_and_moves_no_watermark() -> None:
    predicted = list(predict([sending(5), sending(5), sending(4)]))
    assert [each.outcome for each in predicted] == ["logged", "duplicate", "logged"]


def test_late_begins_when_the_watermark_reaches_the_end_and_the_lateness() -> None:
    window = Window(0, MINUTE)
    for watermark, corrects, late in (
        (MINUTE - 1, False, False),
        (MINUTE, True, False),
        (2 * MINUTE - 1, True, False),
        (2 * MINUTE, True, True),
    ):
        each = Predicted(sending(3), "logged", watermark)
        assert (each.corrects(window), each.is_late_for(window, MINUTE)) == (corrects, late)


@given(at=st.integers(0, 10**13), slide=st.integers(1, 10**6), times=st.integers(1, 50))
def test_an_instant_lies_in_each_of_its_windows_and_in_no_other(
    at: int, slide: int, times: int
) -> None:
    found = list(Sliding(slide * times, slide).of(at))
    assert len(set(found)) == times
    for window in found:
        assert window.start <= at < window.end == window.start + slide * times
        assert window.start % slide == 0


@given(st.lists(st.tuples(st.integers(0, 20 * MINUTE), st.booleans()), max_size=40))
def test_each_logged_event_is_in_its_row_or_late(times: list[tuple[int, bool]]) -> None:
    predicted = list(predict(sending(at, f"{n}") for n, (at, _) in enumerate(times)))
    windows = Sliding(4 * MINUTE, MINUTE)
    rows = grouped(predicted, windows, MINUTE, lambda event: None)
    late = late_records(predicted, {"view": windows}, MINUTE)
    missed = sum(len(entry["views"]["view"]) for entry in late.values())
    assert sum(map(len, rows.values())) + missed == 4 * len(predicted)


def test_a_row_says_corrected_only_for_certain_corrections() -> None:
    window = Window(0, MINUTE)
    on_time = Predicted(sending(1), "logged")
    late = Predicted(sending(2), "logged", MINUTE)
    straggler = Predicted(sending(3, straggler=True), "logged", MINUTE)
    assert state_of(window, [on_time, on_time]) == "final"
    assert state_of(window, [late]) == "final"
    assert state_of(window, [straggler]) == "final"
    assert state_of(window, [on_time, late]) == "final or corrected"
    assert state_of(window, [on_time, late, straggler]) == "corrected"


@pytest.mark.parametrize("speed", [1.0, 30.0])
def test_no_event_happens_after_it_is_sent(speed: float) -> None:
    options = argparse.Namespace(events=400, rate=50.0, speed=speed, start=None)
    pace = Pace.of(options)
    for at in (pace.start, pace.start + pace.span // 2, pace.start + pace.span):
        assert at / 1000 <= pace.when(at) + 0.002
    assert pace.when(pace.start + pace.span) - pace.began == pytest.approx(8, abs=0.01)


@contextmanager
def collector(answer: str, status: int = 200) -> Iterator[tuple[str, list[Any]]]:
    bodies: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its parent's
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", bodies
        server.shutdown()
        thread.join()


def test_events_are_posted_in_order_as_cloud_events() -> None:
    sent = sendings(count=700)
    with collector('{"rejected": []}') as (url, bodies), EventSender(url, "clicks") as post:
        assert post.send(sent) == len(sent)
    posted = [event for body in bodies for event in body]
    assert [(each["id"], each["data"]) for each in posted] == [(e.id, e.event) for e in sent]
    assert len(bodies) == 2


@pytest.mark.parametrize(
    ("answer", "status"), [('{"rejected": [{"index": 0}]}', 200), ('{"title": "no"}', 503)]
)
def test_an_event_that_is_not_taken_in_is_an_error(answer: str, status: int) -> None:
    with (
        collector(answer, status) as (url, _),
        EventSender(url, "clicks") as post,
        pytest.raises(MillstreamError, match="did not accept"),
    ):
        post.send(sendings(count=3))


def test_a_collector_that_is_not_there_is_an_error_with_a_remedy() -> None:
    with collector("") as (url, _):
        pass
    with pytest.raises(MillstreamError, match="start the pipeline first"):
        EventSender(url, "clicks").send(sendings(count=3))


def test_a_join_takes_what_comes_within_the_lateness_of_its_own_time() -> None:
    times = [0, 10 * MINUTE, 9 * MINUTE + 1, 9 * MINUTE, 10 * MINUTE, 3]
    predicted = list(predict(sending(at, str(n)) for n, at in enumerate(times)))
    assert [each.sending.id for each in joined(predicted, MINUTE)] == ["0", "1", "2", "4"]
    missed = {"reason": "late", "views": {"pairs": []}}
    assert late_records(predicted, {"pairs": None}, MINUTE) == {"3": missed, "5": missed}
