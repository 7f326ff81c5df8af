"""Runs a whole Millstream for the benchmark: real processes in their own home."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.client import Client, Sender
from millstream.errors import MillstreamError
from millstream.runtime.home import Home

PIPELINE = Path(__file__).parent / "pipeline.py"
START = 240.0  # seconds; the jars may have to be downloaded first
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class System:
    """The addresses of the running system."""

    home: Home
    collect: str
    serve: str
    bootstrap: str

    def cpu(self) -> dict[str, float]:
        """CPU seconds that each tier has used so far."""
        running = self.home.running()
        pids = {
            "collect": [running["collect"]["pid"]],
            "Kafka": [running["kafka"]["pid"]],
            "analyze": [running["analyze"]["pid"], running["analyze"].get("spark_pid", 0)],
            "serve": [running["serve"]["pid"]],
        }
        return {tier: sum(map(_cpu, set(found))) for tier, found in pids.items()}


@asynccontextmanager
async def running(view: str, mode: str) -> AsyncIterator[System]:
    """A system with that view in that mode; an event has already passed through it."""
    folder = Path(tempfile.mkdtemp(prefix="millstream-bench-"))
    home = Home(folder / "home")
    with open(folder / "run.log", "wb") as log:  # noqa: ASYNC230 - before anything is measured
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "millstream", "run", str(PIPELINE), "--home", str(home.path)),
            *("--kafka-port", "0", "--collect-port", "0", "--serve-port", "0", "--plain"),
            env={**os.environ, "BENCH_VIEW": view, "BENCH_MODE": mode},
            stdout=log,
            stderr=log,
        )
    try:
        async with asyncio.timeout(START):
            system = await _started(home, process)
            await _flowing(system, view)
        yield system
    except BaseException:
        sys.stderr.write((folder / "run.log").read_text(errors="replace")[-4000:])
        raise
    finally:
        await _end(process)
        shutil.rmtree(folder, ignore_errors=True)


async def _started(home: Home, process: asyncio.subprocess.Process) -> System:
    while process.returncode is None:
        found: dict[str, Any] = home.running()
        if {"kafka", "collect", "analyze", "serve"} <= found.keys():
            return System(
                home, found["collect"]["url"], found["serve"]["url"], found["kafka"]["bootstrap"]
            )
        await asyncio.sleep(0.2)
    raise MillstreamError(f"`millstream run` ended with {process.returncode} before it was ready")


async def _flowing(system: System, view: str) -> None:
    """Wait until an event has passed through. Its id is below those that are measured."""
    at = time.time_ns() // 1_000_000
    event = {"id": 0, "key": 0, "at": at, "city": "Start", "text": ""}
    async with Client(system.serve) as client, Sender(system.collect) as sender:
        await sender.send("events", [event])
        while True:
            try:
                if (await client.snapshot(view)).rows:
                    return
            except MillstreamError:
                pass  # the view is not known yet, or is catching up
            await asyncio.sleep(0.2)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(40):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS
