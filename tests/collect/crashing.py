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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.collect.counting import Count, Sender
from tests.collect.forking import Forking

from millstream.log.broker import Broker
from millstream.log.settings import LogSettings

Disturb = Callable[[random.Random], Any]
_PATIENCE = 90.0  # seconds in which something must be answered again, whatever has happened


@dataclass
class Crashes:
    """One run, and what came of it."""

    name: str
    log: LogSettings
    home: Path
    seed: int
    workers: int = 1
    kills: int = 0
    deaths: int = 0  # by itself
    count: Count = field(default_factory=lambda: Count(_senders()))

    async def go_on(self, seconds: float, least: int, disturb: Disturb | None = None) -> None:
        """Send, and kill at random moments, for so long and so often; then let it come to rest."""
        chance = random.Random(self.seed)
        port, stop = _free_port(), asyncio.Event()
        with Forking() as forking:
            self._start = lambda: forking.start(self.name, self.home, self._settings(port))
            self._collector = self._start()
            async with asyncio.TaskGroup() as sending:
                for sender in self.count.senders:
                    sending.create_task(sender.send(port, stop))
                end = time.monotonic() + seconds
                while time.monotonic() < end or self.kills < least:
                    await self._random_moment(chance)
                    if disturb is not None:
                        await asyncio.to_thread(disturb, chance)
                    self._collector.kill()
                    self.kills += 1
                    self._collector = self._start()
                await self._more(100)
                stop.set()
            await self._at_rest(port)

    async def _random_moment(self, chance: random.Random) -> None:
        """In the middle of its start, of its recovery, or of its work."""
        if chance.random() < 0.5:
            await asyncio.sleep(chance.random() * 0.4)
        else:
            await self._more(chance.randrange(1, 500))
            await asyncio.sleep(chance.random() * 0.01)

    async def _more(self, count: int) -> None:
        goal, deadline = self.count.sure + count, time.monotonic() + _PATIENCE
        while self.count.sure < goal:
            if not self._collector.is_alive:  # as a supervisor does
                self.deaths += 1
                self._collector = self._start()
            assert time.monotonic() < deadline, "the collector takes nothing any more"
            await asyncio.sleep(0.002)

    async def _at_rest(self, port: int) -> None:
        deadline = time.monotonic() + _PATIENCE
        while pending := await pending_entries(port):
            assert time.monotonic() < deadline, f"{pending} entries do not leave the journal"
            await asyncio.sleep(0.02)

    def _settings(self, port: int) -> dict[str, Any]:
        return {
            "log": {"bootstrap": self.log.bootstrap},
            "collect": {"port": port, "ack_timeout": 5, "workers": self.workers},
            "journal": {"segment_bytes": 256 << 10},
        }

    def verdict(self) -> list[str]:
        """Every promise that was broken; reads the whole topic."""
        return self.count.verdict(self.log, self.name)

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.kills} kills, {self.deaths} other deaths, {self.count}"


def _senders() -> list[Sender]:
    return [
        Sender(f"{ack}{number}", ack, batch)
        for ack in ("log", "local")
        for number, batch in enumerate((1, 1, 7))
    ]


async def pending_entries(port: int) -> int:
    """How many entries of the collector's journal Kafka does not have yet."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health/ready HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return int(json.loads(answer.partition(b"\r\n\r\n")[2])["journal"]["pending_entries"])


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
        asyncio.run(crashes.go_on(asked.minutes * 60, 1, disturb))
        wrong = crashes.verdict()
    print(crashes)
    raise SystemExit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
