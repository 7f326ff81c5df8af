"""Senders that never rest, a collector that is killed again and again, and the count at the end.

`python -m tests.collect.crashing --minutes 10` (`make soak`) does it for longer, with a Kafka
of its own that is killed and paused too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.collect.counting import Count, Sender
from tests.collect.forking import Forking, Process

from millstream.log.broker import Broker
from millstream.log.settings import LogSettings

Disturb = Callable[[random.Random], Any]
_PATIENCE = 90.0  # seconds in which something must be answered again, whatever has happened


class Run:
    """A collector in a process of its own, which is started again when it ends, and its senders."""

    def __init__(
        self,
        forking: Forking,
        app: str,
        log: LogSettings,
        home: Path,
        senders: list[Sender],
        **settings: dict[str, Any],
    ) -> None:
        self.count = Count(senders)
        self.deaths = 0  # of the collector, by itself
        self.port = _free_port()
        self._app, self._log = app, log
        collect = {"ack_timeout": 5, **settings.pop("collect", {}), "port": self.port}
        chosen = {"log": {"bootstrap": log.bootstrap}, "collect": collect, **settings}
        self._start: Callable[[], Process] = lambda: forking.start(app, home, chosen)
        self._collector = self._start()

    def kill(self) -> None:
        """At once, and start another one."""
        self._collector.kill()
        self._collector = self._start()

    async def send(self, stop: asyncio.Event) -> None:
        """Let all senders send until told to stop."""
        async with asyncio.TaskGroup() as sending:
            for sender in self.count.senders:
                sending.create_task(sender.send(self.port, stop))

    async def more(self, count: int) -> None:
        """Until so many more events are answered."""
        goal = self.count.sure + count
        await self.until(lambda: self.count.sure >= goal, "the collector takes nothing any more")

    async def until(
        self, condition: Callable[[], object | Awaitable[object]], otherwise: str
    ) -> None:
        """Until this is so; a collector that ends meanwhile is started anew, as by a supervisor."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            holds = condition()
            if await holds if isinstance(holds, Awaitable) else holds:
                return
            if not self._collector.is_alive:
                self.deaths += 1
                self._collector = self._start()
            assert time.monotonic() < deadline, otherwise
            await asyncio.sleep(0.002)

    async def at_rest(self) -> None:
        """Until Kafka has everything that is in the journal."""

        async def nothing_pending() -> bool:
            _, content = await self.health()
            return bool(content) and content["journal"]["pending_entries"] == 0

        await self.until(nothing_pending, "something does not leave the journal")

    async def health(self) -> tuple[int, dict[str, Any]]:
        """Status and content of /health/ready; 0 if nobody answers."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return 0, {}
        try:
            writer.write(b"GET /health/ready HTTP/1.0\r\n\r\n")
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        except OSError:
            return 0, {}
        finally:
            writer.close()
        return (int(head.split()[1]), json.loads(body)) if body else (0, {})

    def verdict(self) -> list[str]:
        """Every promise that was broken; reads the whole topic."""
        return self.count.verdict(self._log, self._app)


@dataclass
class Crashes:
    """A run in which the collector is killed, and what came of it."""

    name: str
    log: LogSettings
    home: Path
    seed: int
    workers: int = 1
    kills: int = 0
    told: str = ""

    async def go_on(self, seconds: float, least: int, disturb: Disturb | None = None) -> list[str]:
        """Send, and kill at random moments, for so long and so often; the promises not kept."""
        chance = random.Random(self.seed)
        with Forking() as forking:
            run = Run(
                forking,
                self.name,
                self.log,
                self.home,
                _senders(),
                collect={"workers": self.workers},
                journal={"segment_bytes": 256 << 10},
            )
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(run.send(stop))
                end = time.monotonic() + seconds
                while time.monotonic() < end or self.kills < least:
                    await _random_moment(chance, run)
                    if disturb is not None:
                        await asyncio.to_thread(disturb, chance)
                    run.kill()
                    self.kills += 1
                await run.more(100)
                stop.set()
            await run.at_rest()
        self.told = f"{self.kills} kills, {run.deaths} other deaths, {run.count}"
        return await asyncio.to_thread(run.verdict)

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.told}"


async def _random_moment(chance: random.Random, run: Run) -> None:
    """In the middle of its start, of its recovery, or of its work."""
    if chance.random() < 0.5:
        await asyncio.sleep(chance.random() * 0.4)
    else:
        await run.more(chance.randrange(1, 500))
        await asyncio.sleep(chance.random() * 0.01)


def _senders() -> list[Sender]:
    return [
        Sender(f"{ack}{number}", ack, batch)
        for ack in ("log", "local")
        for number, batch in enumerate((1, 1, 7))
    ]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def disturb_broker(broker: Broker, kill: float, pause: float) -> Disturb:
    """Now and then, with these chances, kills Kafka, or stops it for a moment; first it kills."""
    kinds = iter([0.0])

    def disturb(chance: random.Random) -> None:
        kind = next(kinds, chance.random())
        if kind < kill:
            broker.kill()
            broker.start()
        elif kind < kill + pause:
            os.kill(broker.pid, signal.SIGSTOP)
            time.sleep(chance.random() * 0.5)
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
        disturb = disturb_broker(broker, kill=0.01, pause=0.05)
        wrong = asyncio.run(crashes.go_on(asked.minutes * 60, 1, disturb))
    print(crashes)
    raise SystemExit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
