"""Senders that never rest, a collector that is killed again and again, and the count at the end.

`python -m tests.collect.crashing --minutes 10` (`make soak`) does it for longer, with a Kafka
of its own that is killed and paused too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import signal
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx

from millstream.app import App
from millstream.collect.service import run
from millstream.home import Home
from millstream.log.broker import Broker
from millstream.log.consumer import bounds, read_range
from millstream.log.settings import LogSettings
from millstream.log.topics import stream_topic
from millstream.settings import Settings

_STARTING = multiprocessing.get_context("forkserver")
# What is imported already need not be imported at each start: more crashes in the same time.
_STARTING.set_forkserver_preload(["millstream.collect.service"])

Disturb = Callable[[random.Random], Any]


def pipeline(name: str) -> App:
    """One stream, keyed by who sent it."""
    app = App(name)
    app.stream("counts", schema="sender STRING NOT NULL, n LONG NOT NULL", key="sender")
    return app


def collect(name: str, home: str, settings: str) -> None:
    """The process that gets killed."""
    os.setpgid(0, 0)
    run(pipeline(name), Settings.model_validate_json(settings), Home(Path(home)))


@dataclass
class Sender:
    """Counts up, one request after the other, and never sends a number twice."""

    name: str
    ack: str
    url: str
    batch: int
    sure: list[int] = field(default_factory=list)  # answered with 200 or 202
    unclear: list[int] = field(default_factory=list)  # nobody answered
    statuses: Counter[int] = field(default_factory=Counter)

    async def send(self, http: httpx.AsyncClient, stop: asyncio.Event) -> None:
        """Until told to stop."""
        n = 0
        while not stop.is_set():
            numbers = range(n, n + self.batch)
            n += self.batch
            body = b"\n".join(
                json.dumps({"sender": self.name, "n": number}).encode() for number in numbers
            )
            try:
                response = await http.post(
                    f"{self.url}/v1/streams/counts?ack={self.ack}", content=body
                )
            except httpx.ConnectError:
                n -= self.batch  # nobody was there: nothing was sent
                await asyncio.sleep(0.01)
                continue
            except httpx.HTTPError:
                self.unclear += numbers
                continue
            self.statuses[response.status_code] += 1
            if response.status_code in (200, 202):
                assert response.json()["accepted"] == self.batch
                self.sure += numbers
            else:
                assert response.status_code == 503, response.text
                await asyncio.sleep(0.01)


@dataclass
class Crashes:
    """One run, and what came of it."""

    name: str
    log: LogSettings
    home: Path
    seed: int
    workers: int = 1
    kills: int = 0
    senders: list[Sender] = field(default_factory=list)

    async def go_on(self, seconds: float, disturb: Disturb | None = None) -> None:
        """Send, and kill at random moments, for so long; then let it come to rest."""
        chance = random.Random(self.seed)
        port = _free_port()
        url = f"http://127.0.0.1:{port}"
        self.senders = [
            Sender(f"{ack}{number}", ack, url, batch)
            for ack in ("log", "local")
            for number, batch in enumerate((1, 1, 7))
        ]
        stop = asyncio.Event()
        limits = httpx.Limits(max_keepalive_connections=20)
        async with httpx.AsyncClient(timeout=60, limits=limits, trust_env=False) as http:
            with self._running(port) as start:
                sending = [asyncio.create_task(each.send(http, stop)) for each in self.senders]
                end = time.monotonic() + seconds
                collector = start()
                while time.monotonic() < end:
                    if chance.random() < 0.5:
                        await self._more(chance.randrange(1, 200), sending)
                    else:  # in the middle of its start, and of its recovery
                        await asyncio.sleep(chance.random() * 0.8)
                    if disturb is not None:
                        await asyncio.to_thread(disturb, chance)
                    await asyncio.sleep(chance.random() * 0.02)
                    _kill(collector)
                    self.kills += 1
                    collector = start()
                await self._more(50, sending)
                stop.set()
                await asyncio.gather(*sending)
                await _at_rest(http, url)

    async def _more(self, count: int, sending: list[asyncio.Task[None]]) -> None:
        goal, deadline = self._sure() + count, time.monotonic() + 90
        while self._sure() < goal:
            for task in sending:
                if task.done():
                    task.result()
            assert time.monotonic() < deadline, "the collector takes nothing any more"
            await asyncio.sleep(0.002)

    def _sure(self) -> int:
        return sum(len(sender.sure) for sender in self.senders)

    @contextlib.contextmanager
    def _running(self, port: int) -> Iterator[Callable[[], BaseProcess]]:
        settings = {
            "log": {"bootstrap": self.log.bootstrap},
            "collect": {"port": port, "ack_timeout": 5, "workers": self.workers},
            "journal": {"segment_bytes": 256 << 10},
        }
        processes: list[BaseProcess] = []

        def start() -> BaseProcess:
            process = _STARTING.Process(
                target=collect, args=(self.name, str(self.home), json.dumps(settings))
            )
            process.start()
            processes.append(process)
            return process

        try:
            yield start
        finally:
            for process in processes:
                if process.is_alive():
                    _kill(process)
                process.close()

    def verdict(self) -> list[str]:
        """Every promise that was broken; reads the whole topic."""
        topic = stream_topic(self.name, "counts")
        first, end = bounds(self.log, topic)[0]
        logged: dict[str, list[int]] = {sender.name: [] for sender in self.senders}
        for record in read_range(self.log, topic, 0, first, end):
            event = json.loads(record.value or b"")
            logged[event["sender"]].append(event["n"])
        wrong: list[str] = []
        for sender in self.senders:
            there = logged[sender.name]
            times = Counter(there)
            lost = [n for n in sender.sure if not times[n]]
            doubled = [n for n, count in times.items() if count > 1]
            unknown = set(there) - set(sender.sure) - set(sender.unclear)
            if lost:
                wrong.append(f"{sender.name}: answered but not in the log: {lost[:5]}")
            if doubled:
                wrong.append(f"{sender.name}: in the log more than once: {doubled[:5]}")
            if unknown:
                wrong.append(f"{sender.name}: refused but in the log: {sorted(unknown)[:5]}")
            if there != sorted(there) and not doubled:
                wrong.append(f"{sender.name}: out of order")
        return wrong

    def report(self) -> str:
        """What happened."""
        statuses: Counter[int] = sum((each.statuses for each in self.senders), Counter())
        unclear = sum(len(each.unclear) for each in self.senders)
        return (
            f"{self.kills} kills, {self._sure()} events answered, {unclear} unclear, "
            f"requests by status {dict(statuses)}"
        )


def _kill(process: BaseProcess) -> None:
    assert process.pid is not None
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    process.join(30)


async def _at_rest(http: httpx.AsyncClient, url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        health = (await http.get(f"{url}/health/ready")).json()
        if health["journal"]["pending_entries"] == 0:
            return
        assert time.monotonic() < deadline, f"the journal does not get empty: {health}"
        await asyncio.sleep(0.05)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def disturb_broker(broker: Broker) -> Disturb:
    """Now and then kills Kafka, or stops it for a moment."""

    def disturb(chance: random.Random) -> None:
        kind = chance.random()
        if kind < 0.15:
            broker.kill()
            broker.start()
        elif kind < 0.5:
            os.kill(broker.pid, signal.SIGSTOP)
            time.sleep(chance.random())
            os.kill(broker.pid, signal.SIGCONT)

    return disturb


def main() -> None:
    """Crash for long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "kafka") as broker:
        log = LogSettings(bootstrap=broker.bootstrap)
        crashes = Crashes("soak", log, Path(folder) / "home", asked.seed, asked.workers)
        asyncio.run(crashes.go_on(asked.minutes * 60, disturb_broker(broker)))
        wrong = crashes.verdict()
    print(crashes.report())
    raise SystemExit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
