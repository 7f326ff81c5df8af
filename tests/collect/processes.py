"""A collector as processes of its own, with as many workers as a test wants."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from millstream.collect.service import run
from millstream.collect.workers.workers import Policy
from millstream.errors import MillstreamError
from millstream.log.settings import LogSettings
from millstream.pipeline.app import App
from millstream.runtime.home import Home, is_alive
from millstream.settings import Settings

_STARTING = multiprocessing.get_context("forkserver")
_STARTING.set_forkserver_preload(["millstream.collect.service"])

# Nobody can be killed so often by accident.
STUBBORN = Policy(backoff=0.01, longest_backoff=0.05, fruitless=10**6, deaths=10**6)

Pipeline = Callable[[str], App]


@dataclass
class Collector:
    """One that runs, or ran."""

    process: BaseProcess
    home: Home
    _end: Connection
    words: str = ""

    def ready(self) -> str:
        """Its URL, once it has one; fails if it ended instead."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            running = self.home.running().get("collect", {})
            if running.get("pid") == self.process.pid:
                return str(running["url"])
            assert self.process.is_alive(), self.error()
            time.sleep(0.01)
        raise AssertionError("not ready after a minute")

    def said(self) -> str:
        """All that it wrote to its standard output."""
        return _output(self.home.path).read_text()

    def error(self) -> str:
        """What it raised; empty if nothing. Waits for its end."""
        self.process.join(60)
        assert not self.process.is_alive()
        if self._end.poll():
            self.words = self._end.recv()
        return self.words

    def workers(self) -> list[int]:
        """The numbers of its child processes."""
        assert self.process.pid is not None
        return children_of(self.process.pid)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> float:
        """End it; how many seconds that took."""
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
    policy: Policy = STUBBORN,
    **more: Any,
) -> Iterator[Collector]:
    """Start one; it is killed at the end, if it still runs."""
    chosen = {
        "log": {"bootstrap": log.bootstrap},
        "collect": {"port": 0, "ack_timeout": 5, **more},
        "journal": {"segment_bytes": 256 << 10},
    }
    ours, theirs = _STARTING.Pipe()
    process = _STARTING.Process(
        target=_collect, args=(pipeline, name, str(home), json.dumps(chosen), policy, theirs)
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


def _collect(
    pipeline: Pipeline, name: str, home: str, settings: str, policy: Policy, end: Connection
) -> None:
    os.setsid()
    sys.stdout = open(_output(Path(home)), "w", encoding="utf-8")  # noqa: SIM115
    try:
        run(pipeline(name), Settings.model_validate_json(settings), Home(Path(home)), policy)
    except MillstreamError as error:
        end.send(f"{type(error).__name__}: {error}")
        sys.exit(1)
