"""Whole systems for tests: `millstream run` with all its processes, on free ports and its own home.

    start_system    a context manager that starts one
    browser         one for each module

A module starts one for all its tests, and not longer: at rest it takes a tenth of the machine.

    @pytest.fixture(scope="module")
    def meetup(start_system: StartSystem) -> Iterator[System]:
        with start_system(TEXT) as system:
            yield system
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser
from tests.conftest import pauses
from tests.end_to_end.screen import chromium

from millstream.runtime.home import Home, is_alive
from millstream.supervise import launch

START_SECONDS, END_SECONDS = 240.0, 30.0
MARK = "MILLSTREAM_SYSTEM_UNDER_TEST"

PIPELINE = """
from pyspark.sql import DataFrame, functions as F
from millstream import App

app = App("shop")
app.stream("orders", schema="id LONG NOT NULL, city STRING, amount LONG", key="id")

@app.view(key=["city"])
def by_city(orders: DataFrame) -> DataFrame:
    return orders.groupBy("city").agg(F.count("*").alias("n"), F.sum("amount").alias("amount"))

app.view("large", sql="SELECT id, city, amount FROM orders WHERE amount > 1000")
"""


@dataclass
class System:
    """A running system, as a stranger sees it: a process, a home, addresses."""

    pipeline: Path
    home: Home
    process: subprocess.Popen[bytes]
    mark: str
    output: Path
    ended: bool = False
    _family: set[int] = field(default_factory=set)

    @property
    def collect_url(self) -> str:
        return str(self.home.running()["collect"]["url"])

    @property
    def serve_url(self) -> str:
        return str(self.home.running()["serve"]["url"])

    @property
    def bootstrap(self) -> str:
        return str(self.home.running()["kafka"]["bootstrap"])

    def pid(self, tier: str) -> int:
        """Of `kafka` (java), `collect`, `analyze`, `spark` (analyze's JVM) or `serve`."""
        running = self.home.running()
        return int(running["analyze"]["spark_pid"] if tier == "spark" else running[tier]["pid"])

    def get(self, path: str) -> Any:
        """A GET of the server's."""
        with urllib.request.urlopen(f"{self.serve_url}{path}", timeout=10) as answer:
            return json.load(answer)

    def post(self, stream: str, body: bytes | object) -> dict[str, Any]:
        """Hand in events; the collector's answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.collect_url}/v1/streams/{stream}", data)
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def rows(self, view: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.get(f"/v1/views/{view}")["rows"]
        return rows

    def millstream(self, *arguments: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """A command of ours against this system's home."""
        command = [sys.executable, "-m", "millstream", *arguments, "--home", str(self.home.path)]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, env=self.environment()
        )

    def environment(self) -> dict[str, str]:
        return {**os.environ, MARK: self.mark}

    def until(self, condition: Callable[[], Any], seconds: float = 120, what: str = "") -> Any:
        """Wait for a true answer and return it; fails with the ends of all logs."""
        deadline, between = time.monotonic() + seconds, pauses()
        while True:
            with contextlib.suppress(OSError, KeyError):  # a tier that is away is awaited too
                if answer := condition():
                    return answer
            if self.process.poll() is not None:
                pytest.fail(f"the system ended by itself\n{self.log_tails()}")
            if time.monotonic() > deadline:
                pytest.fail(f"{what or 'the condition'} did not come\n{self.log_tails()}")
            time.sleep(next(between))

    def await_running(self, seconds: float = START_SECONDS) -> None:
        """Wait until every tier is up and every view's query runs."""

        def runs() -> bool:
            if not self.output_has("all ready"):
                return False
            views = self.get("/v1/system")["tiers"]["analyze"]["views"].values()
            return bool(views) and all(view["state"] == "running" for view in views)

        self.until(runs, seconds, "the system's readiness")

    def output_has(self, text: str) -> bool:
        return text in self.output.read_text()

    def processes(self) -> dict[int, str]:
        """Every live process of this system, and what it runs.

        Those that have our mark in their environment, and those whose ancestors have it (or had it
        when we last looked): a process may have been started with a clean environment, and a
        parent may be dead.
        """
        commands: dict[int, str] = {}
        parents: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                pid = int(entry.name)
                parents[pid] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                commands[pid] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    self._family.add(pid)
        for pid in sorted(parents):  # parents are, but for a wrap, older than their children
            if parents[pid] in self._family:
                self._family.add(pid)
        self._family = {pid for pid in self._family if is_alive(pid)}
        return {pid: commands.get(pid, "")[:120] for pid in self._family}

    def end(self, number: int = signal.SIGINT, seconds: float = END_SECONDS) -> int:
        """Ask it to end, and check that it does so in time and leaves no process; its exit code."""
        self.ended = True
        self.processes()  # who is there now, to know later who is left
        self.process.send_signal(number)
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            tails = self.log_tails()
            self.destroy()
            pytest.fail(f"the system did not end within {seconds} s\n{tails}")
        left = self.processes()
        self.destroy()
        assert not left, f"left behind: {left}\n{self.log_tails()}"
        return code

    def destroy(self) -> None:
        """Kill whatever is there."""
        self.ended = True
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def log_tails(self, lines: int = 30) -> str:
        parts = []
        for path in [self.output, *sorted(self.home.logs.glob("*.log"))]:
            said = path.read_text(errors="replace").splitlines()
            if path.name == "kafka.log":
                said = [line for line in said if " INFO " not in line]
            parts.append("\n".join([f"──── {path.name}", *said[-lines:]]))
        return "\n".join(parts)


StartSystem = Callable[..., AbstractContextManager[System]]


@pytest.fixture(scope="session")
def start_system(tmp_path_factory: pytest.TempPathFactory) -> StartSystem:
    """Starts a system; `flags` are for `run`, `files` are put beside the pipeline."""

    @contextlib.contextmanager
    def start(
        pipeline: str = PIPELINE,
        *flags: str,
        suffix: str = ".py",
        files: Mapping[str, str] | None = None,
        home: Path | None = None,
        wait: bool = True,
    ) -> Iterator[System]:
        folder = tmp_path_factory.mktemp("system")
        for name, text in {f"pipeline{suffix}": pipeline, **(files or {})}.items():
            (folder / name).write_text(text)
        system = _launch(folder, folder / f"pipeline{suffix}", home or folder / "home", flags)
        try:
            if wait:
                system.await_running()
            yield system
        except BaseException:
            print(system.log_tails(), file=sys.stderr)
            system.destroy()
            raise
        if not system.ended:
            system.end()

    return start


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as running:
        yield running


def _launch(folder: Path, pipeline: Path, home: Path, flags: Sequence[str]) -> System:
    mark, output = uuid.uuid4().hex, folder / "run.out"
    ports = ["--kafka-port", "0", "--collect-port", "0", "--serve-port", "0"]
    with output.open("wb") as out:
        process = subprocess.Popen(
            [
                # It ends with pytest, even with one that is killed.
                *[sys.executable, launch.__file__, str(os.getpid())],
                *[sys.executable, "-m", "millstream", "run", str(pipeline), "--plain"],
                *["--home", str(home), *ports, *flags],
            ],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, MARK: mark},
        )
    return System(pipeline, Home(home), process, mark, output)
