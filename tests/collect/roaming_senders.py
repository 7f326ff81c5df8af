"""Senders that use a random collector for each request, while collectors are killed."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import httpx

from millstream.log.record import Record
from millstream.values import event

_KILLS = 4  # at least

Kill = Callable[[random.Random], None]


@dataclass
class Sender:
    """Sends increasing numbers, each once, each request to a random URL."""

    name: str
    ack: str
    urls: list[str]
    chance: random.Random
    acknowledged: dict[int, str] = field(default_factory=dict)  # with 200 or 202: their receipts
    unclear: list[int] = field(default_factory=list)  # no answer

    async def send(self, http: httpx.AsyncClient, stop: asyncio.Event) -> None:
        """Send until `stop`."""
        n = 0
        while not stop.is_set():
            numbers = range(n, n + self.chance.choice((1, 1, 5)))
            lines = [json.dumps({"sender": self.name, "n": number}) for number in numbers]
            url = self.chance.choice(self.urls)
            try:
                response = await http.post(
                    f"{url}/v1/streams/counts?ack={self.ack}", content="\n".join(lines)
                )
            except httpx.ConnectError:
                await asyncio.sleep(0.01)  # not connected: nothing was sent
                continue
            except httpx.HTTPError:
                self.unclear += numbers
            else:
                assert response.status_code in (200, 202), response.text
                self.acknowledged |= zip(numbers, response.json()["receipts"], strict=True)
            n = numbers.stop


@dataclass
class RoamingSenders:
    """One run, and its outcome."""

    urls: list[str]
    chance: random.Random
    senders: list[Sender] = field(default_factory=list)
    kills: int = 0

    async def run(self, seconds: float, kill: Kill) -> None:
        """Send, and kill at random moments, for so long and at least some times; then send more."""
        self.senders = [
            Sender(f"{ack}{number}", ack, self.urls, random.Random(self.chance.random()))
            for ack in ("log", "local")
            for number in range(3)
        ]
        stop = asyncio.Event()
        limits = httpx.Limits(max_keepalive_connections=0)  # each request opens a connection
        async with httpx.AsyncClient(timeout=60, limits=limits, trust_env=False) as http:
            sending = [asyncio.create_task(each.send(http, stop)) for each in self.senders]
            end = time.monotonic() + seconds
            await self._more(20, sending)
            while time.monotonic() < end or self.kills < _KILLS:
                if self.chance.random() < 0.5:
                    await self._more(self.chance.randrange(1, 60), sending)
                else:  # in the middle of a start
                    await asyncio.sleep(self.chance.random() * 0.5)
                await asyncio.to_thread(kill, self.chance)
                self.kills += 1
            await self._more(50, sending)
            stop.set()
            await asyncio.gather(*sending)

    async def _more(self, count: int, sending: list[asyncio.Task[None]]) -> None:
        goal, deadline = self.acknowledged() + count, time.monotonic() + 90
        while self.acknowledged() < goal:
            for task in sending:
                if task.done():
                    task.result()
            assert time.monotonic() < deadline, "no collector accepts anything any more"
            await asyncio.sleep(0.002)

    def acknowledged(self) -> int:
        """The number of acknowledged events."""
        return sum(len(sender.acknowledged) for sender in self.senders)

    def violations(self, records: Iterable[Record]) -> list[str]:
        """Every broken promise, by the records of the stream's topic."""
        wrong: list[str] = []
        logged: dict[str, list[int]] = {sender.name: [] for sender in self.senders}
        newest: dict[tuple[str, str], int] = {}
        for record in records:
            content = json.loads(record.value or b"")
            name, n = content["sender"], content["n"]
            logged[name].append(n)
            by = name, dict(record.headers)[event.COLLECTOR].decode()
            if newest.get(by, -1) > n:
                wrong.append(f"{by}: {n} behind {newest[by]}")
            newest[by] = n
        for sender in self.senders:
            times = Counter(logged[sender.name])
            lost = [n for n in sender.acknowledged if not times[n]]
            doubled = [n for n, count in times.items() if count > 1]
            unknown = set(times) - set(sender.acknowledged) - set(sender.unclear)
            if lost:
                wrong.append(f"{sender.name}: answered but not in the log: {lost[:5]}")
            if doubled:
                wrong.append(f"{sender.name}: in the log more than once: {doubled[:5]}")
            if unknown:
                wrong.append(f"{sender.name}: never sent but in the log: {sorted(unknown)[:5]}")
        return wrong

    def receipts(self, count: int) -> list[str]:
        """Some of the receipts."""
        all_of_them = [each for sender in self.senders for each in sender.acknowledged.values()]
        return self.chance.sample(all_of_them, min(count, len(all_of_them)))

    def report(self) -> str:
        """A summary."""
        unclear = sum(len(each.unclear) for each in self.senders)
        return f"{self.kills} kills, {self.acknowledged()} events answered, {unclear} unclear"
