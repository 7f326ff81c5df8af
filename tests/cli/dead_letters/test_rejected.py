"""Rejected events are listed, shown and replayed; each replay stores an event once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cli.collecting import bootstrap, collector, stored

from millstream.cli.shared.options import parse_time
from millstream.errors import MillstreamError
from millstream.log.settings import LogSettings

if TYPE_CHECKING:
    from tests.cli.conftest import Run

STRICT, LOOSE = "id LONG NOT NULL, price DOUBLE", "id LONG NOT NULL, price STRING"
BODY = b"""{"id": 1, "price": 2.5}
{"id": 2, "price": "dear"}
{"id": 3, "price": "\\u001b[2Jcheap"}
{"id": "four"}
no JSON"""


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_rejected_events_are_replayed_once_after_the_schema_was_put_right(
    run: Run, app_name: str, log_settings: LogSettings, tmp_path: Path, delivery: str
) -> None:
    home = tmp_path / ".millstream"
    with collector(app_name, log_settings, home, STRICT, delivery=delivery) as http:
        answer = http.post("/v1/streams/orders", content=BODY).json()
        assert (answer["accepted"], len(answer["rejected"])) == (1, 4)
        outcome = run("rejected", "replay", "orders", "--app", app_name, "--all")
        assert outcome.code == 1
        assert "0 replayed, 4 still do not fit, 0 were replayed before" in outcome.out
        assert "expected a number" in outcome.err

    outcome = run(
        "rejected", "replay", "orders", "--app", app_name, "--all", "--set", bootstrap(log_settings)
    )
    assert outcome.code == 1
    assert "no collect runs" in outcome.err

    with collector(app_name, log_settings, home, LOOSE, delivery=delivery):
        mine = ("orders", "--app", app_name)
        dry = run("rejected", "replay", *mine, "--all", "--dry-run")
        assert "2 would be replayed, 2 still do not fit" in dry.out
        assert len(stored(log_settings, app_name)) == 1
        lines = run("rejected", "list", *mine, "--json", "--reason", "price").out.splitlines()
        first = json.loads(lines[0])
        assert json.loads(first["event"]) == {"id": 2, "price": "dear"}
        assert first["field"] == "price"
        outcome = run("rejected", "replay", *mine, first["id"])
        assert outcome.code == 0
        assert "1 replayed, 0 still" in outcome.out
        outcome = run("rejected", "replay", *mine, "--all")
        assert outcome.code == 1
        assert "1 replayed, 2 still do not fit, 1 were replayed before" in outcome.out
        outcome = run("rejected", "replay", *mine, "--reason", "price")
        assert "0 replayed, 0 still do not fit, 2 were replayed before" in outcome.out

    records = {json.loads(one.value or b"")["id"]: one for one in stored(log_settings, app_name)}
    assert sorted(records) == [1, 2, 3]
    assert records[3].value == b'{"id": 3, "price": "\\u001b[2Jcheap"}'
    headers = {name: value.decode() for name, value in records[2].headers}
    assert headers["ce_originalid"] == first["headers"]["ce_id"]
    assert headers["ce_time"] == first["headers"]["ce_time"]


def test_rejected_events_are_listed_and_shown_and_cannot_steer_the_terminal(
    run: Run, app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    with collector(app_name, log_settings, tmp_path / ".millstream", STRICT) as http:
        http.post("/v1/streams/orders", content=BODY)
    where = ("--app", app_name, "--set", bootstrap(log_settings))
    outcome = run("rejected", "list", "orders", *where, "--limit", "3")
    listed = [json.loads(line) for line in outcome.out.splitlines()]
    assert len(listed) == 3
    assert "3 of 4 rejected events" in outcome.err
    one = next(each for each in listed if "cheap" in each["event"])
    shown = run("rejected", "show", one["id"], *where).out
    assert "expected a number" in shown
    assert "ce_collector: " in shown
    assert "\x1b[2J" not in shown
    raw = run("rejected", "show", one["id"], *where, "--raw").out
    assert raw == '{"id": 3, "price": "\\u001b[2Jcheap"}'
    assert run("rejected", "list", "orders", *where, "--since", "2199-01-01").out == ""
    assert len(run("rejected", "list", "orders", *where, "--since", "1 hour").out.splitlines()) == 4
    outcome = run("rejected", "show", "orders/0/99", *where)
    assert outcome.code == 1
    assert "partition 0 holds 0 to 3" in outcome.err
    outcome = run("rejected", "list", "ordres", "--set", bootstrap(log_settings))
    assert outcome.code == 1
    assert "no stream 'ordres'" in outcome.err


def test_a_cloudevent_with_a_wrong_envelope_is_not_replayed_as_if_it_were_data(
    run: Run, app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    with collector(app_name, log_settings, tmp_path / ".millstream", "price DOUBLE") as http:
        content = {"specversion": "1.0", "source": "/s", "type": "t", "data": {"price": 1}}
        answer = http.post(
            "/v1/streams/orders",
            content=json.dumps(content),
            headers={"content-type": "application/cloudevents+json"},
        )
        assert answer.status_code == 422
        outcome = run("rejected", "replay", "orders", "--app", app_name, "--all")
        assert "0 replayed, 1 still do not fit" in outcome.out
        assert "attributes were wrong" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["replay", "orders"], "say which"),
        (["replay", "orders", "orders/0/1", "--all"], "not both"),
    ],
)
def test_a_replay_must_say_what_is_meant(run: Run, arguments: list[str], words: str) -> None:
    outcome = run("rejected", *arguments)
    assert outcome.code == 2
    assert words in outcome.err


@pytest.mark.parametrize("name", ["orders", "orders/1", "orders/x/1", "orders/1/-1", "a/1/2/3"])
def test_a_name_that_is_none_is_told_what_one_looks_like(run: Run, name: str) -> None:
    outcome = run("rejected", "show", name, "--set", "log.bootstrap=127.0.0.1:1")
    assert outcome.code == 1
    assert "STREAM/PARTITION/OFFSET" in outcome.err


def test_since_is_a_duration_or_a_time() -> None:
    assert parse_time("2026-01-31T12:00:00Z") == 1769860800000
    assert parse_time("1 hour") < parse_time("1 minute")
    with pytest.raises(MillstreamError, match="2 hours"):
        parse_time("yesterday")
