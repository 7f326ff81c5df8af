"""A rebuilt view corrects the rows of the one that it replaces."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from tests.analyze.row_state.test_row_state import view

from millstream.analyze.history.history import LogRange
from millstream.analyze.rebuild.rebuildable import why_not
from millstream.analyze.rebuild.takeover import mark_corrected, whole_from
from millstream.log.connection import admin, client_config
from millstream.log.consumer import bounds, read_range
from millstream.log.settings import LogSettings
from millstream.values.view_description import ViewColumn

if TYPE_CHECKING:
    from tests.analyze.conftest import Load

STREAM = 'app.stream("s", schema="k STRING, at TIMESTAMP", event_time="at")\n'
QUERY = "SELECT window(at, '1 minute') AS window, {} AS n FROM {} GROUP BY 1"


def make(log: LogSettings, *topics: str) -> None:
    client = admin(log)  # answers come as long as it lives
    made = client.create_topics([NewTopic(topic, 1, 1) for topic in topics])
    for each in made.values():
        each.result(30)


def test_rows_that_were_final_with_other_values_are_corrected(
    log_settings: LogSettings, app_name: str
) -> None:
    old, new = f"{app_name}.view.v", f"{app_name}.view.v.1"
    make(log_settings, old, new)
    producer = Producer(client_config(log_settings))

    def give(topic: str, key: str, n: int, state: str) -> None:
        row = {"n": n, "_revision": n, **({"_state": state} if state else {})}
        producer.produce(topic, json.dumps(row, separators=(",", ":")), f'["{key}"]')

    for key, n, state in (
        *(("same", 3, "final"), ("other", 3, "final"), ("was", 3, "corrected")),
        *(("open", 3, ""), ("gone", 3, "final")),
    ):
        give(old, key, n, state)
    for key, n, state in (
        *(("same", 3, ""), ("same", 3, "final"), ("other", 2, "final"), ("was", 3, "final")),
        *(("open", 2, ""), ("come", 1, "final")),
    ):
        give(new, key, n, state)
    assert producer.flush(10) == 0
    plan = replace(view(new, window="window"), columns=(ViewColumn("n", "bigint"),))
    assert mark_corrected(log_settings, plan, old) == 2
    ((partition, (_, end)),) = bounds(log_settings, new).items()
    marked = read_range(log_settings, new, partition, end - 2, end)
    assert {record.key: record.value for record in marked} == {
        b'["other"]': b'{"n":2,"_revision":2,"_state":"corrected"}',
        b'["was"]': b'{"n":3,"_revision":3,"_state":"corrected"}',
    }
    assert mark_corrected(log_settings, plan, old) == 0, "they are marked already"


def test_missing_events_are_older_than_the_first_event_that_was_read(
    log_settings: LogSettings, app_name: str
) -> None:
    make(log_settings, app_name)
    producer = Producer(client_config(log_settings))
    now = time.time_ns() // 1_000_000  # Kafka deletes what is older than its retention
    for later in (1_000, 2_000, 3_000):
        producer.produce(app_name, b"{}", timestamp=now + later)
    assert producer.flush(10) == 0
    for start, since, expected in (
        (0, None, 0),
        (1, None, now + 2_060),
        (1, now + 2_500, now + 2_560),
    ):
        past = LogRange({app_name: {0: (start, 3)}})
        assert whole_from(log_settings, past, since, ahead_ms=60) == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("ledger=['n']", ""),
        ("ledger=['n'], trigger='at the watermark', accumulation='discard'", ""),
        ("trigger='when n > 3'", ""),
        ("ledger=['n'], trigger='when n > 3'", "a trigger with a condition"),
    ],
)
def test_views_whose_ledger_cannot_be_computed_again_are_not_rebuilt(
    pipeline: Load, options: str, words: str
) -> None:
    sql = QUERY.format("count(*)", "s")
    app = pipeline(f'{STREAM}app.view("v", key="window", {options}, sql="{sql}")')
    found = why_not(app, app.views["v"])
    assert words in found
    assert bool(words) == bool(found)


def test_a_ledger_over_a_table_is_not_rebuilt(pipeline: Load) -> None:
    table = f'app.view("t", key="window", sql="{QUERY.format("count(*)", "s")}")\n'
    over = "SELECT window, sum(n) AS n FROM t GROUP BY 1"
    read = "reads={'t': 'changes'}"
    app = pipeline(f'{STREAM}{table}app.view("v", key="window", ledger="n", {read}, sql="{over}")')
    assert "reads a table" in why_not(app, app.views["v"])
