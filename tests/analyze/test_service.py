"""The `analyze` process starts, stops, and survives kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from millstream.log.connection import client_config
from millstream.log.settings import LogSettings
from millstream.log.topic_names import audit_topic, stream_topic, view_topic, views_topic
from millstream.pipeline.load import load
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.runtime.home import is_alive
from millstream.values.report import ProcessReport
from millstream.values.view_description import ViewDescription

PROGRAM = """
import sys
from pathlib import Path
from millstream.analyze.service import run
from millstream.runtime.home import Home
from millstream.pipeline.load import load
from millstream.settings import Settings

settings = Settings(log={"bootstrap": sys.argv[2]}, analyze={"checkpoint_interval": "5 seconds"})
run(load(Path(sys.argv[1])), settings, Home(Path(sys.argv[3])))
"""
PIPELINE = """
from millstream import App
app = App("{name}")
app.stream("events", schema="n LONG, city STRING")
app.view("by_city", key=["city"], keep="1 day", description="How many.",
         sql="SELECT city, count(*) AS n FROM events GROUP BY city")
"""


class Analyze:
    def __init__(self, log: LogSettings, name: str, folder: Path) -> None:
        self.log, self.name, self.home = log, name, folder / "home"
        self.pipeline = folder / "pipeline.py"
        self.pipeline.write_text(PIPELINE.format(name=name))
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> tuple[subprocess.Popen[str], int]:
        """Start it and wait until it is ready; its process and its JVM's process id."""
        arguments = [str(self.pipeline), self.log.bootstrap, str(self.home)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "analyze ready with 1 view\n"
        announced = json.loads((self.home / "run.json").read_text())["analyze"]
        assert announced["pid"] == self.process.pid
        return self.process, int(announced["spark_pid"])

    def send(self, *cities: str) -> None:
        producer = Producer(client_config(self.log))
        for city in cities:
            producer.produce(stream_topic(self.name, "events"), json.dumps({"n": 1, "city": city}))
        assert producer.flush(10) == 0


@pytest.fixture
def analyze(log_settings: LogSettings, app_name: str, tmp_path: Path) -> Iterator[Analyze]:
    running = Analyze(log_settings, app_name, tmp_path)
    yield running
    if running.process is not None:
        running.process.kill()
        running.process.communicate()


@pytest.mark.spark
def test_it_survives_a_kill_of_python_or_java_and_stops_on_sigterm(
    analyze: Analyze, read_topic: Any, eventually: Any
) -> None:
    log, name = analyze.log, analyze.name
    ensure_topics(load(analyze.pipeline), log)

    def counted() -> dict[str, int]:
        newest: dict[str, tuple[int, int]] = {}
        for _, row in read_topic(log, view_topic(name, "by_city")):
            newest[row["city"]] = max(newest.get(row["city"], (0, 0)), (row["_revision"], row["n"]))
        return {city: n for city, (_, n) in newest.items()}

    process, jvm = analyze.start()
    analyze.send("Bern", "Bern", "Lyon")
    eventually(lambda: counted() == {"Bern": 2, "Lyon": 1}, 60)
    (key, found), *_ = read_topic(log, views_topic(name))
    description = msgspec.convert(found, ViewDescription)
    assert (key, description.name, description.mode) == ("by_city", "by_city", "real_time")
    assert (description.lineage, description.keep_ms) == ("revision", 86_400_000)

    def reported() -> tuple[str, str]:
        report = msgspec.convert(read_topic(log, audit_topic(name))[-1][1], ProcessReport)
        return report.tier, report.views["by_city"].state

    eventually(lambda: reported() == ("analyze", "running"))

    process.kill()
    process.communicate()
    eventually(lambda: not is_alive(jvm), 10)

    process, jvm = analyze.start()
    analyze.send("Lyon")
    eventually(lambda: counted() == {"Bern": 2, "Lyon": 2}, 60)
    os.kill(jvm, signal.SIGKILL)
    process.communicate(timeout=20)
    assert process.returncode not in (0, None)

    process, jvm = analyze.start()
    analyze.send("Bern")
    eventually(lambda: counted() == {"Bern": 3, "Lyon": 2}, 60)
    asked = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 0
    assert time.monotonic() - asked < 10
    assert not is_alive(jvm)
    assert json.loads((analyze.home / "run.json").read_text()) == {}
