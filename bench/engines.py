"""Engines that bench.windows measures: the analysis tier on a given Kafka, or a reference."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from millstream.errors import MillstreamError
from millstream.log.connection import admin
from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic, view_topic
from millstream.pipeline.load import load
from millstream.pipeline.pipeline_topics import ensure_topics

PIPELINE = Path(__file__).with_name("windows_pipeline.py")
_END = 40.0  # seconds


class Refused(MillstreamError):
    """Spark cannot run this query in this mode."""


@dataclass(frozen=True)
class Engine:
    """A process that reads events of one topic and writes rows to another."""

    source: str
    sink: str
    process: subprocess.Popen[bytes]
    output: Path

    def check(self) -> None:
        """Raise if it has ended."""
        if self.process.poll() is not None:
            said = self.output.read_text(errors="replace")[-3000:]
            raise MillstreamError(f"what is measured ended with {self.process.returncode}:\n{said}")


@contextmanager
def engine(
    command: list[str], source: str, sink: str, environment: dict[str, str] | None = None
) -> Iterator[Engine]:
    """A process that runs until the block ends."""
    with tempfile.TemporaryDirectory(prefix="millstream-engine-") as folder:
        output = Path(folder) / "output"
        with open(output, "wb") as out:
            process = subprocess.Popen(
                [part.replace("{folder}", folder) for part in command],
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        try:
            yield Engine(source, sink, process, output)
        finally:
            process.terminate()
            try:
                process.wait(_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def analyzing(
    log: LogSettings, kind: str, mode: str, *, second_compiler: bool = False
) -> Iterator[Engine]:
    """The analysis tier with a view of that kind; Refused if it cannot run in that mode."""
    name = f"bench_{kind}_{mode}" + ("_compiled_twice" if second_compiler else "")
    chosen = {"BENCH_NAME": name, "BENCH_KIND": kind, "BENCH_MODE": mode}
    _check(chosen)
    os.environ.update(chosen)
    app = load(PIPELINE)
    ensure_topics(app, log)
    source, sink = stream_topic(app.name, "events"), view_topic(app.name, "windowed")
    stamp_on_arrival(log, sink)
    command = [
        *[sys.executable, "-m", "millstream", "analyze", str(PIPELINE), "--home", "{folder}/home"],
        *["--set", f"log.bootstrap={log.bootstrap}"],
        *["--set", f"analyze.second_compiler={str(second_compiler).lower()}"],
    ]
    with engine(command, source, sink, chosen) as running:
        yield running


def _check(chosen: dict[str, str]) -> None:
    planned = subprocess.run(
        [sys.executable, "-m", "millstream", "plan", str(PIPELINE)],
        env={**os.environ, **chosen},
        capture_output=True,
        text=True,
        check=False,
    )
    if planned.returncode != 0:
        said = re.sub(r"^(error: )?\S+windows_pipeline.py:\d+: ", "", planned.stderr.strip())
        raise Refused(said.splitlines()[0] if said else "the pipeline cannot be planned")


def prepare_topics(log: LogSettings, source: str, sink: str) -> tuple[str, str]:
    """Create the topics of a reference."""
    client = admin(log)
    for made in client.create_topics([NewTopic(source, 1, 1), NewTopic(sink, 1, 1)]).values():
        made.result()
    stamp_on_arrival(log, sink)
    return source, sink


def stamp_on_arrival(log: LogSettings, topic: str) -> None:
    """Let Kafka set the time-stamp of rows, so that all engines use the same clock."""
    entry = ConfigEntry(
        "message.timestamp.type",
        "LogAppendTime",
        incremental_operation=AlterConfigOpType.SET,
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client = admin(log)
    for changed in client.incremental_alter_configs([resource]).values():
        changed.result()
