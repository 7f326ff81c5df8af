"""State that is bigger than memory: `python -m bench.state`.

So many keys, each in one event, go through a grouped view whose Spark has a small heap and a small
budget for state. Prints how many keys a second it took, the JVM's processor time for each, and the
most memory that it had; on the way, how many look-ups missed RocksDB's cache. Every key must be in
the checkpoint at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from millstream.analyze.monitor.state import find_checkpoint, read_state
from millstream.analyze.planning.planner import Planner
from millstream.analyze.query.queries import Queries
from millstream.analyze.settings import AnalyzeSettings
from millstream.analyze.spark.session import java_process, start_session
from millstream.log.broker import Broker
from millstream.log.connection import client_config
from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic
from millstream.pipeline.app import App
from millstream.pipeline.model import Mode
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.settings import Settings

_LOOK_UPS = ("Get", "ReadBlockCacheMiss")


def pipeline(mode: Mode) -> App:
    app = App("state")
    app.stream("events", schema="key LONG, value LONG")
    app.view(
        "by_key",
        key=["key"],
        mode=mode,
        sql="SELECT key, count(*) AS n, sum(value) AS total FROM events GROUP BY key",
    )
    return app


def fill(log: LogSettings, app: App, keys: int) -> None:
    """One event for each key."""
    producer = Producer(client_config(log, linger_ms=50, compression_type="lz4"))
    for number in range(keys):
        value = json.dumps({"key": number * 2_654_435_761 % (1 << 40), "value": number})
        while True:
            try:
                producer.produce(stream_topic(app.name, "events"), value)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(300) == 0


@contextmanager
def session(settings: AnalyzeSettings, home: Path) -> Iterator[SparkSession]:
    spark = start_session(settings, 8, "state", home / "spark")
    try:
        yield spark
    finally:
        spark.stop()


def megabytes(pid: int, what: str) -> int:
    """Memory of a process: `VmRSS` (now) or `VmHWM` (maximum)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) // 1024
    return 0


def processor_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def look_ups(spark: SparkSession) -> str:
    """RocksDB look-ups of the newest batch, and its cache misses."""
    for query in spark.streams.active:
        if (progress := query.lastProgress) is not None and progress["stateOperators"]:
            found = progress["stateOperators"][0]["customMetrics"]
            got, missed = (found.get(f"rocksdb{what}Count", 0) for what in _LOOK_UPS)
            return f"  {missed:,} blocks missed in {got:,} look-ups"
    return ""


def measure(settings: Settings, app: App, home: Path, keys: int) -> None:
    with session(settings.analyze, home) as spark:
        pid, queries = java_process(spark), Queries(spark, app, settings, home / "checkpoints")
        queries.add_all(Planner(spark, app, settings).queries())
        topic, begun, told = stream_topic(app.name, "events"), time.monotonic(), 0.0
        load, before = os.getloadavg()[0], processor_seconds(pid)
        while (read := _read(queries, topic)) < keys:
            queries.tick()
            time.sleep(0.25)
            if time.monotonic() - told > 10:
                told = time.monotonic()
                print(
                    f"{told - begun:6.0f} s  {read:>9,} keys  {megabytes(pid, 'VmRSS')} MB"
                    f"{look_ups(spark)}",
                    flush=True,
                )
        took, peak = time.monotonic() - begun, megabytes(pid, "VmHWM")
        work = 1e6 * (processor_seconds(pid) - before) / keys
        queries.stop(patience=30)
        checkpoint = find_checkpoint(home / "checkpoints", "by_key")
        held = read_state(spark, checkpoint, "by_key", limit=1).operators[0].keys
    disk = sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file()) >> 20
    print(
        f"{held:,} keys in {took:.0f} s, {keys / took:,.0f} keys/s, {work:.0f} µs of processor "
        f"each (load average {load:.1f} before, {os.getloadavg()[0]:.1f} after); the JVM's memory "
        f"{peak} MB at most (heap {settings.analyze.driver_memory}, "
        f"state {settings.analyze.state_memory}); checkpoint {disk} MB"
    )
    assert held == keys


def _read(queries: Queries, topic: str) -> int:
    return queries.counts()["by_key"].read.get(topic, {}).get("0", 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--mode", choices=("real_time", "micro_batch"), default="real_time")
    parser.add_argument("--driver-memory", default="1g")
    parser.add_argument("--state-memory", default="256m")
    given = parser.parse_args()
    app = pipeline(given.mode)
    analyze = AnalyzeSettings(
        driver_memory=given.driver_memory,
        state_memory=given.state_memory,
        checkpoint_interval="20 seconds",
    )
    with tempfile.TemporaryDirectory(prefix="millstream-state-") as folder:
        home = Path(folder)
        with Broker(home / "kafka") as broker:
            log = LogSettings(bootstrap=broker.bootstrap)
            ensure_topics(app, log)
            fill(log, app, given.keys)
            measure(Settings(log=log, analyze=analyze), app, home, given.keys)


if __name__ == "__main__":
    main()
