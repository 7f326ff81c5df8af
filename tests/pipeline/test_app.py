"""Apps that are declared in code, without a pipeline file."""

from __future__ import annotations

import linecache
import re
from datetime import timedelta
from typing import Any

import pytest

from millstream import App
from millstream.errors import PipelineError
from millstream.pipeline.model import Delivery


@pytest.fixture
def app() -> App:
    app = App("direct")
    app.stream("events", schema="x INT, at TIMESTAMP", event_time="at")
    return app


def test_declaring_returns_the_stream_or_view(app: App) -> None:
    view = app.view("small", sql="SELECT x FROM events WHERE x < 3")
    assert app.views["small"] is view
    assert view.location.file == __file__
    app.check()


def test_a_decorated_function_can_still_be_called(app: App) -> None:
    @app.view(key="x")
    def doubled(events: int) -> int:
        return events * 2

    assert doubled(21) == 42
    assert app.views["doubled"].function is doubled


def test_durations_may_be_timedeltas(app: App) -> None:
    stream = app.stream("more", schema="x INT", retention=timedelta(days=2))
    assert stream.retention == timedelta(days=2)
    with pytest.raises(PipelineError, match="is not a duration"):
        app.stream("less", schema="x INT", retention=timedelta(days=-2))


def test_a_refused_declaration_leaves_nothing_behind(app: App) -> None:
    with pytest.raises(PipelineError):
        app.view("small", key="y", sql="SELECT x FROM events")
    assert not app.views
    app.view("small", key="x", sql="SELECT x FROM events")


def test_mistakes_between_declarations_are_found_by_check(app: App) -> None:
    app.view("late", sql="SELECT x FROM evnts")
    with pytest.raises(PipelineError, match="did you mean 'events'"):
        app.check()


@pytest.mark.parametrize(
    ("shed", "message"),
    [
        ("levl = 'debug'", "there is no column 'levl'; did you mean: level"),
        ("level > 3", "number"),
        ("level", "is a text, not a condition"),
        ("level = ", "cannot read the condition"),
        ("rand() < 0.5", "a filter cannot contain"),
    ],
)
def test_what_a_stream_may_shed_is_checked_with_its_line(app: App, shed: str, message: str) -> None:
    with pytest.raises(PipelineError) as refused:
        app.stream(
            "logs",
            schema="level STRING",
            delivery="at_least_once",
            shed=shed,
        )
    assert message in str(refused.value)
    assert "POST" not in str(refused.value)
    assert refused.value.file == __file__
    assert linecache.getline(__file__, refused.value.line).strip() == "shed=shed,"
    assert app.stream("logs", schema="level STRING", delivery="at_least_once", shed="random")


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_dedup_needs_exactly_once_delivery(app: App, delivery: Delivery) -> None:
    with pytest.raises(PipelineError) as refused:
        app.stream(
            "logs",
            schema="level STRING",
            delivery=delivery,
            dedup="2 hours",
        )
    assert f"'logs' has dedup='2 hours' but is {delivery}" in str(refused.value)
    assert "delivery='exactly_once'" in refused.value.remedy
    assert linecache.getline(__file__, refused.value.line).strip() == 'dedup="2 hours",'
    assert app.stream("logs", schema="level STRING", delivery=delivery, dedup="0 seconds")


def test_shed_at_needs_shed(app: App) -> None:
    with pytest.raises(PipelineError) as refused:
        app.stream(
            "logs",
            schema="level STRING",
            delivery="at_least_once",
            shed_at=0.5,
        )
    assert "'logs' has shed_at=0.5 but no shed" in str(refused.value)
    assert "add shed=" in refused.value.remedy
    assert linecache.getline(__file__, refused.value.line).strip() == "shed_at=0.5,"


def test_views_that_feed_each_other_are_refused(app: App) -> None:
    app.view("a", sql="SELECT x FROM b")
    app.view("b", sql="SELECT x FROM c JOIN events USING (x)")
    app.view("c", sql="SELECT x FROM b")
    with pytest.raises(PipelineError, match="view 'b' feeds itself: b → c → b"):
        app.views_in_order()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shed": "30 seconds"}, "has shed but no key"),
        ({"key": ["n"], "shed": "soon"}, "shed='soon'"),
        ({"key": ["n"], "shed": "1 second"}, "less than a restart of its query takes"),
        ({"key": ["n"], "shed": "1 minute", "ledger": ["n2"]}, "needs exact amounts"),
        ({"key": ["n"], "shed": "1 minute", "accumulation": "discard"}, "whose rows have no error"),
    ],
)
def test_the_shed_option_of_a_view_is_checked(
    app: App, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PipelineError, match=re.escape(message)) as refused:
        app.view("v", sql="SELECT n, n2 FROM logs", **options)
    assert refused.value.remedy
    view = app.view("w", sql="SELECT n FROM logs", key=["n"], shed="30 seconds")
    assert view.sheds_after == timedelta(seconds=30)
    assert app.view("x", sql="SELECT n FROM logs", key=["n"], shed="stream").sheds_after is None
