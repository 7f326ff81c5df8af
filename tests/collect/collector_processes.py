"""Collectors as processes of their own: one, or several that share a port."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from millstream.collect.service import run
from millstream.errors import MillstreamError
from millstream.log.settings import LogSettings
from millstream.pipeline.app import App
from millstream.runtime.home import Home, is_alive
from millstream.settings import Settings

_ROOT = Path(__file__).parents[2]
_STARTING = multiprocessing.get_context("forkserver")
_STARTING.set_forkserver_preload(["millstream.collect.service"])

Pipeline = Callable[[str], App]


@dataclass
class Collector:
    """A collector process, running or ended."""

    process: BaseProcess
    home: Home
    _end: Connection
    words: str = ""

    def ready(self) -> str:
        """Wait for its URL; fails if it ended instead."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            running = self.home.running().get("collect", {})
            if running.get("pid") == self.process.pid:
                return str(running["url"])
            assert self.process.is_alive(), self.error()
            time.sleep(0.01)
        raise AssertionError("not ready after a minute")

    def said(self) -> str:
        """Its standard output."""
        return _output(self.home.path).read_text()

    def error(self) -> str:
        """Wait for its end; the error it raised, or empty."""
        self.process.join(60)
        assert not self.process.is_alive()
        if self._end.poll():
            self.words = self._end.recv()
        return self.words

    def stop(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Stop it; how many seconds that took."""
        assert self.process.pid is not None
        began = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)
        self.process.join(30)
        assert not self.process.is_alive()
        return time.monotonic() - began


def _output(home: Path) -> Path:
    return home.with_name(f"{home.name}.output")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def children_of(pid: int) -> list[int]:
    """The live children of a process."""
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children if is_alive(int(child))]
    return []


@contextlib.contextmanager
def collector(
    pipeline: Pipeline,
    name: str,
    log: LogSettings,
    home: Path,
    **more: Any,
) -> Iterator[Collector]:
    """Start a collector; it is killed at the end, if it still runs."""
    chosen = {
        "log": {"bootstrap": log.bootstrap},
        "collect": {"port": 0, "ack_timeout": 5, **more},
        "journal": {"segment_bytes": 256 << 10},
    }
    ours, theirs = _STARTING.Pipe()
    process = _STARTING.Process(
        target=_collect, args=(pipeline, name, str(home), json.dumps(chosen), theirs)
    )
    process.start()
    theirs.close()
    running = Collector(process, Home(home), ours)
    try:
        yield running
    finally:
        if process.is_alive():
            running.stop(signal.SIGKILL)
        process.close()
        ours.close()


def _collect(pipeline: Pipeline, name: str, home: str, settings: str, end: Connection) -> None:
    os.setsid()
    sys.stdout = open(_output(Path(home)), "w", encoding="utf-8")  # noqa: SIM115
    try:
        run(pipeline(name), Settings.model_validate_json(settings), Home(Path(home)))
    except MillstreamError as error:
        end.send(f"{type(error).__name__}: {error}")
        sys.exit(1)


@dataclass
class CollectorGroup:
    """`millstream collect` with several processes, which it restarts."""

    process: subprocess.Popen[bytes]
    home: Home
    _output: Path
    _errors: Path

    def ready(self) -> str:
        """Its URL, once all processes are ready; fails if it ended instead."""
        deadline = time.monotonic() + 120
        while not (found := re.search(r"collect ready on (http\S+);", self.output())):
            assert self.process.poll() is None, self.error()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.02)
        return found[1]

    def output(self) -> str:
        return self._output.read_text()

    def error(self) -> str:
        """What it wrote to standard error. Waits for its end."""
        self.process.wait(60)
        return self._errors.read_text()

    def workers(self) -> list[int]:
        """The process ids of the collectors."""
        return children_of(self.process.pid)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Stop it; how many seconds that took."""
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(30)
        return time.monotonic() - began


@contextlib.contextmanager
def collectors(
    pipeline: Pipeline, name: str, log: LogSettings, home: Path, workers: int, **more: Any
) -> Iterator[CollectorGroup]:
    """Start several collectors on one port; they are killed at the end."""
    home.mkdir(parents=True, exist_ok=True)
    stem = f"{home.name}-{uuid.uuid4().hex}"
    file, output, errors = (home.with_name(stem + end) for end in (".py", ".out", ".err"))
    file.write_text(f"from {pipeline.__module__} import {pipeline.__name__} as declare\n")
    with file.open("a") as script:
        script.write(f"app = declare({name!r})\n")
    chosen = {
        "log.bootstrap": log.bootstrap,
        "journal.segment_bytes": 256 << 10,
        "collect.workers": workers,
        **{f"collect.{key}": value for key, value in {"port": 0, "ack_timeout": 5, **more}.items()},
    }
    flags = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "millstream", "collect", str(file), "--home", str(home), *flags],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, "PYTHONPATH": path},
        )
    group = CollectorGroup(process, Home(home), output, errors)
    try:
        yield group
    finally:
        if process.poll() is None:
            group.stop(signal.SIGKILL)
