"""How long a server takes to be ready, and its memory: `python -m bench.startup --rows 1000000`.

A view with so many rows is written to Kafka. Then a server is started: it reads all of them before
it is ready. Prints the seconds, the memory then, and the largest memory until then.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from confluent_kafka import Producer

from millstream.log.broker import Broker
from millstream.log.connection import client_config
from millstream.log.settings import LogSettings
from millstream.log.topic_names import view_topic, views_topic
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.runtime.home import Home
from millstream.serve import service
from millstream.serve.settings import ServeSettings
from millstream.settings import Settings
from millstream.values.view_description import ViewColumn, ViewDescription

NAME = "startup"
COLUMNS = [
    ViewColumn("city", "string"),
    ViewColumn("n", "bigint"),
    ViewColumn("newest", "string"),
    ViewColumn("at", "bigint"),
]


def pipeline() -> App:
    app = App(NAME)
    app.stream("rsvps", schema="id LONG NOT NULL, city STRING, at TIMESTAMP", key="id")
    sql = "SELECT city, count(*) AS n, max(at) AS newest FROM rsvps GROUP BY city"
    app.view("by_city", key=["city"], sql=sql)
    return app


def fill(log: LogSettings, rows: int) -> None:
    """Write the view's description and its rows, as `analyze` does."""
    app = pipeline()
    ensure_topics(app, log)
    producer = Producer(client_config(log, linger_ms=20, queue_buffering_max_messages=2_000_000))
    described = ViewDescription(
        name="by_city",
        inputs=["rsvps"],
        key=["city"],
        columns=COLUMNS,
        mode="real_time",
        reason="a benchmark",
        guarantee="exactly once",
        lineage="revision",
        generation="1",
    )
    producer.produce(views_topic(NAME), msgspec.json.encode(described), "by_city")
    for number in range(rows):
        row = (
            b'{"city":"city %d","n":%d,"newest":"2026-01-31T12:00:00.000000Z",'
            b'"_revision":%d,"_received_at":"2026-01-31T12:00:00.000000Z"}'
        ) % (number, number % 1000, number % 1000)
        producer.produce(view_topic(NAME, "by_city"), row, b'["city %d"]' % number)
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(300) == 0


def start_server(bootstrap: str, home: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.startup", "--serve", bootstrap, str(home)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def memory(pid: int) -> tuple[int, int]:
    """Resident megabytes now, and the most so far."""
    lines = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return tuple(int(lines[name].split()[0]) // 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]


def measure(rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "kafka") as broker:
        fill(LogSettings(bootstrap=broker.bootstrap), rows)
        began = time.monotonic()
        server = start_server(broker.bootstrap, Path(folder) / "home")
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            seconds = time.monotonic() - began
            assert line.startswith("serve ready"), line
            steady, most = memory(server.pid)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)
    print(
        f"{rows:,} rows: ready after {seconds:.1f} s; {steady} MB when ready, at most {most} MB "
        f"({most / steady:.2f} times); {os.cpu_count()} cores"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--serve", nargs=2, metavar=("BOOTSTRAP", "HOME"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is None:
        measure(given.rows)
        return
    bootstrap, home = given.serve
    serve = ServeSettings(port=0, max_connections=20_000, max_connections_per_address=20_000)
    settings = Settings(log=LogSettings(bootstrap=bootstrap), serve=serve)
    service.run(pipeline(), settings, Home(Path(home)))


if __name__ == "__main__":
    main()
