"""Views with a Python function on a real standalone cluster, whose worker is killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from confluent_kafka import Producer

from millstream.log.connection import client_config
from millstream.log.consumer import bounds, read_range
from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic, view_topic
from millstream.pipeline.load import load
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.runtime.home import is_alive
from millstream.runtime.parent_death import die_with_parent
from millstream.runtime.ports import free_port

if TYPE_CHECKING:
    from tests.conftest import Eventually

PROGRAM = """
import sys
from pathlib import Path
from millstream.analyze.service import run
from millstream.runtime.home import Home
from millstream.pipeline.load import load
from millstream.settings import Settings

pipeline, bootstrap, home, master = sys.argv[1:]
spark = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "3",
    "spark.pyspark.python": sys.executable,
}
analyze = {"checkpoint_interval": "5 seconds", "spark_master": master, "driver_memory": "512m"}
settings = Settings(log={"bootstrap": bootstrap}, analyze={**analyze, "spark": spark})
run(load(Path(pipeline)), settings, Home(Path(home)))
"""
PIPELINE = """
from places import name_of
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millstream import App

app = App("{name}")
app.stream("events", schema="n LONG, city STRING")

@F.udf("string")
def full_name(city):
    return name_of(city)

def counts(groups):
    return groups.agg(F.count(F.lit(1)).alias("n"), F.sum("n").alias("total"))

@app.view(key=["city"], mode="real_time")
def by_city(events: DataFrame) -> DataFrame:
    return counts(events.groupBy("city"))

@app.view(key=["city"])
def by_name(events: DataFrame) -> DataFrame:
    return counts(events.groupBy(full_name("city").alias("city")))
"""
VIEWS = {"by_city": "", "by_name": "city "}  # what stands before a city's name
# It lies beside the pipeline, where no worker looks for modules: it must be shipped to them.
PLACES = """
def name_of(city):
    return f"city {city}"
"""
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # three of these JVMs start at once
CLASS = "org.apache.spark.deploy."


class Worker:
    """A worker in a process group of its own, with the executor that it starts."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process = process
        self._folder = folder

    def runs_tasks(self) -> bool:
        logs = self._folder.glob("*/*/stderr")
        return any("Running task" in log.read_text() for log in logs)


class Cluster:
    """One master and workers of three slots each; all end with the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = f"spark://127.0.0.1:{free_port()}"
        port = self.master.rpartition(":")[2]
        self._start("master", "master.Master", "--host", "127.0.0.1", "--port", port)

    def worker(self) -> Worker:
        name = f"worker{len(self._processes)}"
        words = ("--host", "127.0.0.1", "--cores", "3", "--memory", "600m")
        work = ("--work-dir", str(self._folder / name), self.master)
        return Worker(self._start(name, "worker.Worker", *words, *work), self._folder / name)

    def end(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, name: str, main: str, *words: str) -> subprocess.Popen[bytes]:
        spark = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            "SPARK_HOME": str(spark),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "128m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
        }
        command = [str(spark / "bin" / "spark-class"), CLASS + main, *words, "--webui-port", "0"]
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        self._processes.append(process)
        return process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    running = Cluster(tmp_path)
    yield running
    running.end()


def newest(log: LogSettings, name: str, view: str) -> dict[str, tuple[int, int]]:
    """Each city's count and total, as a server would have them."""
    topic = view_topic(name, view)
    rows: dict[str, Any] = {}
    _, end = bounds(log, topic)[0]
    for record in read_range(log, topic, 0, 0, end):
        row = json.loads(record.value or b"{}")
        if row["_revision"] > rows.get(row["city"], {"_revision": 0})["_revision"]:
            rows[row["city"]] = row
    return {city: (row["n"], row["total"]) for city, row in rows.items()}


@pytest.mark.timeout(400)
def test_a_view_outlives_the_worker_that_it_runs_on(
    cluster: Cluster,
    log_settings: LogSettings,
    app_name: str,
    tmp_path: Path,
    eventually: Eventually,
) -> None:
    workers = [cluster.worker(), cluster.worker()]
    pipeline = tmp_path / "pipeline.py"
    pipeline.write_text(PIPELINE.format(name=app_name))
    (tmp_path / "places.py").write_text(PLACES)
    ensure_topics(load(pipeline), log_settings)
    arguments = [str(pipeline), log_settings.bootstrap, str(tmp_path / "home"), cluster.master]
    producer = Producer(client_config(log_settings, linger_ms=0))
    expected: dict[str, tuple[int, int]] = {}

    def send(count: int) -> None:
        for number in range(count):
            city = f"c{number % 5}"
            n, total = expected.get(city, (0, 0))
            expected[city] = (n + 1, total + number)
            event = json.dumps({"n": number, "city": city})
            producer.produce(stream_topic(app_name, "events"), event)
        assert producer.flush(10) == 0

    def is_exact() -> bool:
        return all(
            newest(log_settings, app_name, view)
            == {prefix + city: counts for city, counts in expected.items()}
            for view, prefix in VIEWS.items()
        )

    with analyze(arguments) as wait_ready:
        wait_ready()
        send(200)
        eventually(is_exact, 120)
        kill(next(worker for worker in workers if worker.runs_tasks()), eventually)
        send(200)
        eventually(is_exact, 120)


def kill(worker: Worker, eventually: Eventually) -> None:
    """SIGKILL for a worker and for its executor."""
    members = group(worker.process.pid)
    assert len(members) > 1, "the worker has no executor"
    os.killpg(worker.process.pid, signal.SIGKILL)
    worker.process.wait()
    eventually(lambda: not any(is_alive(pid) for pid in members), 10)


def group(leader: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:  # its session
                found.append(int(stat.parent.name))
    return found


@contextlib.contextmanager
def analyze(arguments: list[str]) -> Iterator[Callable[[], None]]:
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:

        def wait_ready() -> None:
            assert process.stdout is not None
            assert re.match("analyze ready", process.stdout.readline())

        try:
            yield wait_ready
        finally:
            process.terminate()
