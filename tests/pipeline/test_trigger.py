"""The output options of views: trigger, accumulation and ledger."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from millstream import App
from millstream.errors import PipelineError
from millstream.pipeline.load import load
from millstream.pipeline.trigger import (
    EVERY_CHANGE,
    AtWatermark,
    EveryEvents,
    EveryInterval,
    Trigger,
    When,
    parse_trigger,
)

GROUPED = "SELECT k, count(*) AS n FROM events GROUP BY k"


@pytest.mark.parametrize(
    ("text", "trigger"),
    [
        ("every change", EVERY_CHANGE),
        ("Every 10  seconds", EveryInterval(timedelta(seconds=10))),
        ("every 1 minute 30 seconds", EveryInterval(timedelta(seconds=90))),
        ("every 100 events", EveryEvents(100)),
        ("every event", EveryEvents(1)),
        ("when n > 100 AND k = 'A  b'", When("n > 100 AND k = 'A  b'")),
        ("at the watermark", AtWatermark()),
    ],
)
def test_a_trigger_is_parsed_from_its_text(text: str, trigger: Trigger) -> None:
    assert parse_trigger(text) == trigger
    assert parse_trigger(str(trigger)) == trigger


@pytest.fixture
def app() -> App:
    app = App("direct")
    app.stream("events", schema="k STRING, at TIMESTAMP", event_time="at")
    return app


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trigger": "evry 3 seconds"}, "'evry 3 seconds' is no trigger; write 'every change'"),
        ({"trigger": "every now and then"}, "is no trigger; write 'every change'"),
        ({"trigger": "every 0 events"}, "counts to 0; write 'every 100 events'"),
        ({"trigger": "every 5 ms"}, "is too often; write 'every 100 ms' or more"),
        ({"trigger": 10}, "10 is no trigger"),
        ({"trigger": "when n >"}, "write a condition on result columns"),
        ({"accumulation": "discrad"}, "did you mean 'discard'"),
        ({"ledger": []}, "ledger=\\[\\]; write the names of amounts"),
        ({"ledger": ["n", "N"]}, "each once"),
        ({"ledger": "k"}, "a key is no amount"),
        ({"ledger": "m"}, "'m' in its ledger, which is not in its result; write one of"),
        ({"key": None, "trigger": "every 3 events"}, "trigger but no key"),
        ({"key": None, "accumulation": "retract"}, "accumulation but no key"),
        ({"key": None, "ledger": "n"}, "ledger but no key"),
    ],
)
def test_an_invalid_output_option_is_refused_with_its_line(
    app: App, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PipelineError, match=message) as caught:
        app.view("v", sql=GROUPED, **{"key": "k", **options})
    assert caught.value.file == __file__
    assert caught.value.line


@pytest.mark.parametrize(
    ("accumulation", "reading", "message"),
    [
        ("retract", "changes", "retracts old rows: they would count as events"),
        ("discard", "reference", "which contain only what is new"),
    ],
)
def test_a_view_cannot_read_rows_that_it_would_misinterpret(
    app: App, accumulation: Any, reading: Any, message: str
) -> None:
    app.view("v", sql=GROUPED, key="k", accumulation=accumulation)
    app.view("w", sql="SELECT k, n FROM v", reads={"v": reading})
    with pytest.raises(PipelineError, match=message):
        app.check()


def test_sql_has_the_same_output_options(tmp_path: Path) -> None:
    path = tmp_path / "p.sql"
    path.write_text(
        "CREATE STREAM events (k STRING, at TIMESTAMP) WITH (event_time = 'at');\n"
        "CREATE VIEW v WITH (key = 'k', trigger = 'when n > 100',\n"
        "  accumulation = 'retract', ledger = ('n')) AS\n"
        f"{GROUPED};"
    )
    view = load(path).views["v"]
    assert view.trigger == When("n > 100")
    assert (view.accumulation, view.ledger, view.has_output_options) == ("retract", ("n",), True)
    path.write_text(path.read_text().replace("'retract'", "'retracts'"))
    with pytest.raises(PipelineError, match="did you mean 'retract'") as caught:
        load(path)
    assert caught.value.line == 3


def test_by_default_every_row_is_output(app: App) -> None:
    assert not app.view("v", sql=GROUPED, key="k").has_output_options
    assert not app.view("w", sql=GROUPED, key="k", ledger=["n"]).has_output_options
