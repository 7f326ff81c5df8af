"""A view's ledger on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from millstream import App
from millstream.log.connection import client_config
from millstream.log.settings import LogSettings
from millstream.log.topic_names import ledger_topic
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.values.ledger_entry import LedgerEntry, encode

if TYPE_CHECKING:
    from tests.cli.conftest import Run

ENTRIES = [
    LedgerEntry("1", ["a"], "assertion", {"n": 2}, [], "2026-01-01T00:00:01.000Z"),
    LedgerEntry("2", ["b"], "assertion", {"n": 5}, [], "2026-01-01T00:00:02.000Z"),
    LedgerEntry("3", ["a"], "retraction", {"n": 2}, ["late"], "2026-01-01T00:00:03.000Z"),
    LedgerEntry("4", ["a"], "assertion", {"n": 3}, ["late"], "2026-01-01T00:00:03.000Z"),
]


@pytest.fixture
def where(log_settings: LogSettings, app_name: str) -> list[str]:
    """A ledger with some entries, and how a command finds it."""
    app = App(app_name)
    app.stream("s", schema="k STRING, at TIMESTAMP", event_time="at")
    app.view("v", sql="SELECT k, count(*) AS n FROM s GROUP BY k", key="k", ledger=["n"])
    ensure_topics(app, log_settings)
    producer = Producer(client_config(log_settings))
    for entry in ENTRIES:
        producer.produce(ledger_topic(app_name, "v"), encode(entry), json.dumps(entry.key))
    assert producer.flush(30) == 0
    return ["--app", app_name, "--set", f"log.bootstrap={log_settings.bootstrap}"]


def test_entries_are_listed_and_added_up(run: Run, where: list[str]) -> None:
    lines = run("ledger", "v", *where).out.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["1", "2", "3", "4"]
    assert json.loads(lines[2])["reason"] == ["late"]
    found = [json.loads(line) for line in run("ledger", "v", *where, "--sum").out.splitlines()]
    assert found == [{"key": ["a"], "amounts": {"n": 3}}, {"key": ["b"], "amounts": {"n": 5}}]


def test_the_sums_of_a_ledger_are_followed(where: list[str]) -> None:
    command = [sys.executable, "-m", "millstream", "ledger", "v", *where, "--follow", "--sum"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [json.loads(process.stdout.readline()) for _ in range(3)]
            assert [line["amounts"]["n"] for line in lines if line["key"] == ["a"]] == [2, 3]
        finally:
            process.kill()


def test_a_view_without_a_ledger_is_told_so(run: Run, where: list[str]) -> None:
    outcome = run("ledger", "w", *where[2:])
    assert outcome.code == 1
    assert "the log has no ledger of a view 'w'" in outcome.err
