"""Runs in which senders send all the time, and a collector is killed again and again.

`python -m tests.collect.crash_runs --minutes 10` (`make soak`) runs longer, with its own Kafka,
which is killed and paused too.
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

from tests.collect.counting_senders import Sender, SenderGroup
from tests.collect.forked_collectors import CollectorForker, Process

from millstream.log.broker import Broker
from millstream.log.settings import LogSettings

Disturb = Callable[[random.Random], Any]
_PATIENCE = 90.0  # seconds until requests must be answered again


class CollectorRun:
    """A collector process that is started again when it ends, and its senders."""

    def __init__(
        self,
        forker: CollectorForker,
        app: str,
        log: LogSettings,
        home: Path,
        senders: list[Sender],
        **settings: dict[str, Any],
    ) -> None:
        self.senders = SenderGroup(senders)
        self.deaths = 0  # of the collector, other than by `kill`
        self.port = _free_port()
        self._app, self._log = app, log
        collect = {"ack_timeout": 5, **settings.pop("collect", {}), "port": self.port}
        chosen = {"log": {"bootstrap": log.bootstrap}, "collect": collect, **settings}
        self._start: Callable[[], Process] = lambda: forker.start(app, home, chosen)
        self._collector = self._start()

    def kill(self) -> None:
        """Kill the collector, and start another one."""
        self._collector.kill()
        self._collector = self._start()

    async def send(self, stop: asyncio.Event) -> None:
        """Let all senders send until `stop`."""
        async with asyncio.TaskGroup() as sending:
            for sender in self.senders.senders:
                sending.create_task(sender.send(self.port, stop))

    async def more(self, count: int) -> None:
        """Wait until so many more events are answered."""
        goal = self.senders.acknowledged + count
        await self.until(
            lambda: self.senders.acknowledged >= goal, "the collector accepts nothing any more"
        )

    async def until(
        self, condition: Callable[[], object | Awaitable[object]], otherwise: str
    ) -> None:
        """Wait for a condition; a collector that ends meanwhile is started again."""
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
        """Wait until Kafka has everything that is in the journal."""

        async def nothing_pending() -> bool:
            _, content = await self.health()
            return bool(content) and content["journal"]["pending_entries"] == 0

        await self.until(nothing_pending, "entries stay in the journal")

    async def health(self) -> tuple[int, dict[str, Any]]:
        """Status and content of /health/ready; 0 if there is no answer."""
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

    def violations(self) -> list[str]:
        """Every broken promise; reads the whole topic."""
        return self.senders.violations(self._log, self._app)


@dataclass
class CrashRun:
    """A run in which the collector is killed, and its outcome."""

    name: str
    log: LogSettings
    home: Path
    seed: int
    workers: int = 1
    kills: int = 0
    summary: str = ""

    async def run(self, seconds: float, least: int, disturb: Disturb | None = None) -> list[str]:
        """Send, and kill at random moments, for so long and so often; the broken promises."""
        chance = random.Random(self.seed)
        with CollectorForker() as forker:
            run = CollectorRun(
                forker,
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
        self.summary = f"{self.kills} kills, {run.deaths} other deaths, {run.senders}"
        return await asyncio.to_thread(run.violations)

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.summary}"


async def _random_moment(chance: random.Random, run: CollectorRun) -> None:
    """Wait for a random moment of its start, recovery or work."""
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
    """A function that kills or pauses Kafka with these probabilities; the first call kills."""
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
    """Run for a long time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "kafka") as broker:
        log = LogSettings(bootstrap=broker.bootstrap)
        crashes = CrashRun("soak", log, Path(folder) / "home", arguments.seed, arguments.workers)
        disturb = disturb_broker(broker, kill=0.01, pause=0.05)
        wrong = asyncio.run(crashes.run(arguments.minutes * 60, 1, disturb))
    print(crashes)
    raise SystemExit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
