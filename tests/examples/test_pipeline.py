"""The Meetup pipeline, in Python and in SQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.load import load
from millstream.source import WebSocketSource

EXAMPLE = Path(__file__).parents[2] / "examples/meetup"


def test_it_is_short_enough_to_read_at_a_glance() -> None:
    assert len((EXAMPLE / "pipeline.py").read_text().splitlines()) <= 60


def test_python_and_sql_declare_the_same_streams_and_views() -> None:
    python, sql = load(EXAMPLE / "pipeline.py"), load(EXAMPLE / "pipeline.sql")
    ours, theirs = python.streams["rsvps"], sql.streams["rsvps"]
    for field in ("schema", "key", "event_time", "lateness", "delivery", "source"):
        assert getattr(ours, field) == getattr(theirs, field), field
    assert python.name == sql.name
    assert python.views.keys() == sql.views.keys()
    for name, view in python.views.items():
        other = sql.views[name]
        assert (view.key, view.keep, view.inputs) == (other.key, other.keep, other.inputs), name


def test_the_environment_says_where_the_rsvps_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEETUP_URL", "ws://elsewhere:1/rsvps")
    source = load(EXAMPLE / "pipeline.py").streams["rsvps"].source
    assert source == WebSocketSource("ws://elsewhere:1/rsvps")
