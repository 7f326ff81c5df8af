"""Which views have read past an event: told by the system's figures, with what is certain in it."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from millstream.cli.trace import trace
from millstream.cli.trace.event_trace import LateRecord, Trace, trace_event
from millstream.supervise import status_tables

EVENT: dict[str, Any] = {
    "state": "logged",
    "stream": "orders",
    "collector": "c1",
    "sequence": 7,
    "index": 0,
    "received_at": "2026-11-16T16:00:00.000Z",
    "journaled_at": "2026-11-16T16:00:00.002Z",
    "logged_at": "2026-11-16T16:00:00.009Z",
    "topic": "shop.stream.orders",
    "partition": 0,
    "offset": 41,
}
RECEIVED = 1794844800000
VIEWS = [
    {"name": "top", "inputs": ["by_city"]},
    {"name": "by_city", "inputs": ["orders"]},
    {"name": "large", "inputs": ["orders"]},
    {"name": "clicks_only", "inputs": ["clicks"]},
]


def system(
    analyze: dict[str, Any] | None = None, serve: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "now": "2026-11-16T16:00:05.000Z",
        "views": VIEWS,
        "tiers": {"analyze": {"views": analyze or {}}, "serve": {"views": serve or {}}},
    }


def read(offset: int, **more: Any) -> dict[str, Any]:
    return {"state": "running", "read": {"shop.stream.orders": {"0": offset}}, **more}


def states(found: Trace) -> dict[str, str]:
    return {view.name: view.state for view in found.views}


def test_a_checkpoint_or_rows_behind_the_event_are_certain_and_later_events_make_it_likely() -> (
    None
):
    analyze = {"by_city": read(42, read_at=RECEIVED + 1000), "large": read(41)}
    serve = {"large": read(42), "top": {"newest_received_at": RECEIVED}}
    found = trace_event(EVENT, system(analyze, serve), "")
    assert states(found) == {"by_city": "read", "large": "read", "top": "likely"}
    assert found.views[0].by == "2026-11-16T16:00:01.000Z"
    assert found.is_over
    assert found.is_successful(wait=True)


def test_what_is_not_known_is_said_to_be_so() -> None:
    analyze = {"by_city": read(41, read_at=RECEIVED), "large": {"state": "restarting"}}
    serve = {"by_city": {"newest_received_at": RECEIVED - 1}}
    found = trace_event(EVENT, system(analyze, serve), "")
    assert set(states(found).values()) == {"unknown"}
    words = {view.name: view.words for view in found.views}
    assert "its checkpoint is from 2026-11-16T16:00:00.000Z" in words["by_city"]
    assert "its query is restarting" in words["large"]
    assert found.is_successful(wait=False)
    assert not found.is_successful(wait=True)
    assert not found.is_over


def test_without_a_server_nothing_is_said_of_the_views() -> None:
    found = trace_event(EVENT, None, "no serve runs")
    assert (found.views, found.unknown) == ([], "no serve runs")
    assert not found.is_successful(wait=True)


def test_the_tree_follows_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(status_tables, "console", lambda: Console(file=out, width=160))
    trace.show(trace_event(EVENT, system({"by_city": read(42, read_at=RECEIVED)}), ""))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert "journaled  2026-11-16T16:00:00.002Z  +2 ms" in lines[1]
    assert "+9 ms  shop.stream.orders, partition 0, offset 41" in lines[2]
    assert lines[3].startswith("  ├─ ● by_city")
    assert lines[4].startswith("  │  └─ ◌ top")
    assert lines[5].startswith("  └─ ◌ large")


def test_an_event_in_the_late_topic_is_named_there_and_is_well() -> None:
    aside = LateRecord("orders/0/3", "late by 300.000 s \x1b[2J")
    found = replace(trace_event(EVENT, system(), ""), late=(aside,))
    told = [(step.name, step.words) for step in found.steps()][-2:]
    assert [name for name, _ in told] == ["late", ""]
    assert told[0][1].startswith("late by 300.000 s")
    assert "\x1b" not in told[0][1]
    assert told[1][1] == "millstream late show orders/0/3"
    assert found.is_successful(wait=False)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("rejected", "millstream rejected show orders/0/41"),
        ("failed", "millstream failed show c1-7.0"),
        ("journaled", "waits in the collector's journal"),
    ],
)
def test_an_event_that_is_elsewhere_is_shown_there(state: str, words: str) -> None:
    found = trace_event({**EVENT, "state": state, "error": "\x1b[2J"}, system(), "")
    told = [step.words for step in found.steps()]
    assert any(words in each for each in told)
    assert not any("\x1b" in each for each in told)
    assert found.is_over == (state != "journaled")
    assert found.is_successful(wait=False) == (state == "journaled")
