"""Serves made-up RSVPs over a WebSocket, in the shape that Meetup's public stream had.

    python simulator.py --rate 20 --late 0.02 --duplicate 0.01 --broken 0.01

The n-th RSVP, and the pause before it, depend on the seed and n alone; only its time-stamps are
those of sending. So anyone who knows the seed can compute what was sent.

The stream pauses while nobody listens, so the first listener gets event 0. A listener gets all
events from the moment it connects. One that is 10,000 messages behind is disconnected with close
code 1013; no message is dropped silently.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import http
import itertools
import json
import math
import os
import signal
import sys
import time
from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, TextIO

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

HERE = Path(__file__).parent
DAY = 20_000  # events per simulated day
TREND = 800  # after so many events another topic starts to trend, for four times as long
BURST = 50  # events in a burst, and in the calm period after it
SLOWEST = 10_000  # messages that a listener may be behind


def table(name: str) -> list[dict[str, str]]:
    with open(HERE / f"{name}.tsv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def zipf(n: int, exponent: float) -> list[float]:
    return [rank**-exponent for rank in range(1, n + 1)]


def slug(text: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


class World:
    """Generates RSVPs from a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.cities = table("cities")
        self.topics = table("topics")
        self.names = {row["names"]: row for row in table("names")}
        self._topic_odds = list(itertools.accumulate(zipf(len(self.topics), 0.8)))
        self._city_odds = lru_cache(24)(self._city_odds_at)
        self._group = lru_cache(20_000)(self._draw_group)

    def rsvp(self, n: int, now: int) -> dict[str, Any]:
        """The n-th RSVP, answered at `now` (milliseconds since the epoch)."""
        rng = self._random("rsvp", n)
        city = bisect(odds := self._city_odds(n % DAY * 24 // DAY), rng.random() * odds[-1])
        group = self._group(city, self._topic(n, rng), int(rng.paretovariate(1.2)) % 40)
        event = self._random("event", group["group_id"], rng.randrange(3))
        start = now - now % 1_800_000 + event.randrange(1, 30 * 48) * 1_800_000
        event_id = str(event.randrange(10**8, 10**9))
        rsvp = {
            "visibility": "public",
            "response": "yes" if rng.random() < 0.72 else "no",
            "guests": min(int(rng.expovariate(1.6)), 6),
            "member": self._member(city, rng),
            "rsvp_id": 1_700_000_000 + n,
            "mtime": now,
            "event": {
                "event_name": f"{group['group_topics'][0]['topic_name']} {self._title(event)}",
                "event_id": event_id,
                "time": start,
                "event_url": f"https://meetup.example/{group['group_urlname']}/events/{event_id}/",
            },
            "group": group,
        }
        # As in the real stream, some events have no venue yet.
        return rsvp if event.random() < 0.1 else {"venue": self._venue(city, event), **rsvp}

    def gap(self, n: int) -> float:
        """The pause before event n, in units of the mean: bursts of BURST events, then calm."""
        pace = 1.75 if (n // BURST) % 2 else 0.25
        return self._random("gap", n).expovariate(1.0) * pace

    def _random(self, *of: object) -> Random:
        return Random(":".join(map(str, (self.seed, *of))))

    def _city_odds_at(self, hour: int) -> list[float]:
        # People answer most at 7 in the evening, local time.
        def awake(lon: float) -> float:
            return 0.08 + ((1 + math.cos((hour + lon / 15 - 19) * math.pi / 12)) / 2) ** 2

        ranks = zipf(len(self.cities), 0.8)
        return list(
            itertools.accumulate(
                rank * awake(float(city["lon"]))
                for rank, city in zip(ranks, self.cities, strict=True)
            )
        )

    def _topic(self, n: int, rng: Random) -> int:
        if rng.random() < 0.4:  # one of the four topics that trend now, rising or fading
            phase = n % TREND / TREND
            age = rng.choices(range(4), (phase, 1 + phase, 2 - phase, 1 - phase))[0]
            return self._random("trend", n // TREND - age).randrange(len(self.topics))
        return bisect(self._topic_odds, rng.random() * self._topic_odds[-1])

    def _draw_group(self, city: int, topic: int, number: int) -> dict[str, Any]:
        rng = self._random("group", city, topic, number)
        at, main = self.cities[city], self.topics[topic]
        near = [t["topic"] for t in self.topics if t["theme"] == main["theme"] and t is not main]
        topics = [main["topic"], *rng.sample(near, min(rng.randrange(4), len(near)))]
        style = rng.choice(("{} {} Meetup", "{} {} Club", "{} {} & Friends", "The {} {} Circle"))
        name = style.format(at["city"], main["topic"]) + (f" {number}" if number > 1 else "")
        group = {
            "group_topics": [{"urlkey": slug(name), "topic_name": name} for name in topics],
            "group_city": at["city"],
            "group_country": at["country"],
            "group_id": 1_000_000 + (city * len(self.topics) + topic) * 40 + number,
            "group_name": name,
            "group_lon": float(at["lon"]),
            "group_lat": float(at["lat"]),
            "group_urlname": slug(name),
        }
        return {**group, "group_state": at["state"]} if at["state"] else group

    def _member(self, city: int, rng: Random) -> dict[str, Any]:
        member_id = city * 100_000 + int(20_000 * rng.random() ** 2)  # some are keener
        who = self._random("member", member_id)
        names = self.names[self.cities[city]["names"]]
        name = names["written"].format(
            given=who.choice(names["given"].split(",")),
            family=who.choice(names["family"].split(",")),
        )
        photo = f"https://photos.meetup.example/member_{member_id}.jpeg"
        member = {"member_id": member_id, "member_name": name}
        return {**member, "photo": photo} if who.random() < 0.8 else member

    def _venue(self, city: int, rng: Random) -> dict[str, Any]:
        at = self.cities[city]
        kind = rng.choice(
            ("Library", "Café Central", "Town Hall", "Tech Hub", "Park", "Old Brewery")
        )
        return {
            "venue_name": f"{at['city']} {kind}",
            "lon": round(float(at["lon"]) + rng.gauss(0, 0.05), 5),
            "lat": round(float(at["lat"]) + rng.gauss(0, 0.04), 5),
            "venue_id": rng.randrange(10**6, 10**8),
        }

    @staticmethod
    def _title(rng: Random) -> str:
        return rng.choice(
            ("Night", "for Beginners", "Weekend", "Social", "Talks", "Workshop", "#42")
        )


@dataclass(frozen=True)
class Faults:
    """The shares of events that are late, duplicated or broken. No event has two faults."""

    late: float = 0.0
    duplicate: float = 0.0
    broken: float = 0.0

    def of(self, seed: int, n: int) -> str:
        drawn = Random(f"{seed}:fault:{n}").random()
        for fault in ("late", "duplicate", "broken"):
            drawn -= getattr(self, fault)
            if drawn < 0:
                return fault
        return ""


def messages(world: World, faults: Faults, now: Callable[[], int]) -> Iterator[list[str]]:
    """The messages for each event: the event, and the duplicate of an earlier one if it is due."""
    again: deque[tuple[int, str]] = deque()
    for n in itertools.count():
        fault = faults.of(world.seed, n)
        # Late by 10 minutes on average: some within the lateness of 10 minutes, some beyond it.
        back = Random(f"{world.seed}:late:{n}").expovariate(1 / 600_000) if fault == "late" else 0
        event = world.rsvp(n, now() - round(back))
        text = broken_text(event, n) if fault == "broken" else json.dumps(event, ensure_ascii=False)
        if fault == "duplicate":
            again.append((n + 7, text))
        yield [text, *(again.popleft()[1] for _ in range(bool(again and again[0][0] == n)))]


def broken_text(event: dict[str, Any], n: int) -> str:
    """A message that must be rejected: truncated, without its key, or with a wrong type."""
    text = json.dumps(event, ensure_ascii=False)
    without_key = {name: value for name, value in event.items() if name != "rsvp_id"}
    return (
        text[: len(text) // 2],
        json.dumps(without_key, ensure_ascii=False),
        json.dumps({**event, "mtime": "yesterday"}, ensure_ascii=False),
        json.dumps({**event, "group": "hikers"}, ensure_ascii=False),
    )[n % 4]


class Listener:
    """A connection, and the messages still to be sent to it."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self._queue: asyncio.Queue[str] = asyncio.Queue()

    def offer(self, text: str) -> None:
        self._queue.put_nowait(text)

    async def send_queued(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            while self._queue.qsize() <= SLOWEST:
                await self.connection.send(await self._queue.get())
            await self.connection.close(1013, "reads too slowly")


class Simulator:
    """Sends one paced stream of messages to every listener."""

    def __init__(
        self, world: World, faults: Faults, rate: float, count: int, record: TextIO
    ) -> None:
        self.world, self.rate, self.count, self.record = world, rate, count, record
        self.messages = messages(world, faults, lambda: time.time_ns() // 1_000_000)
        self._listeners: set[Listener] = set()
        self._has_listeners = asyncio.Event()

    async def listen(self, connection: ServerConnection) -> None:
        listener = Listener(connection)
        self._listeners.add(listener)
        self._has_listeners.set()
        sending = asyncio.create_task(listener.send_queued())
        await connection.wait_closed()
        self._listeners.discard(listener)
        if not self._listeners:
            self._has_listeners.clear()
        sending.cancel()

    async def run(self) -> None:
        """Send each event at its time; stop after `count` events (0: never)."""
        due = time.monotonic()
        for n in range(self.count) if self.count else itertools.count():
            due += self.world.gap(n) / self.rate
            if (wait := due - time.monotonic()) > 0 or n % 100 == 0:
                await asyncio.sleep(max(wait, 0))
            if not self._has_listeners.is_set():
                await self._has_listeners.wait()
                due = time.monotonic()  # the stream was paused
            self._send(next(self.messages))
        await asyncio.Event().wait()

    def _send(self, texts: Sequence[str]) -> None:
        for text in texts:
            self.record.write(text + "\n")
            for listener in self._listeners:
                listener.offer(text)


def only_rsvps(connection: ServerConnection, request: Request) -> Response | None:
    if request.path.partition("?")[0] == "/rsvps":
        return None
    return connection.respond(http.HTTPStatus.NOT_FOUND, "the stream is at /rsvps\n")


async def simulate(options: argparse.Namespace, record: TextIO) -> None:
    faults = Faults(options.late, options.duplicate, options.broken)
    simulator = Simulator(World(options.seed), faults, options.rate, options.count, record)
    async with serve(
        simulator.listen, "127.0.0.1", options.port, process_request=only_rsvps, compression=None
    ) as server:
        port = server.sockets[0].getsockname()[1]
        print(
            f"simulator ready on ws://127.0.0.1:{port}/rsvps: {options.rate:g} RSVPs a second,"
            f" seed {options.seed}",
            flush=True,
        )
        running = asyncio.ensure_future(simulator.run())
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await running


def share(text: str) -> float:
    if not 0 <= (value := float(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share; write a number from 0 to 1")
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--port", type=int, default=8600, help="0: any free one (default 8600)")
    parser.add_argument("--rate", type=float, default=20, help="RSVPs a second, on average (20)")
    parser.add_argument("--seed", type=int, default=7, help="another seed, another world (7)")
    parser.add_argument("--late", type=share, default=0.0, help="share that comes minutes late")
    parser.add_argument("--duplicate", type=share, default=0.0, help="share that is sent twice")
    parser.add_argument("--broken", type=share, default=0.0, help="share that must be rejected")
    parser.add_argument("--count", type=int, default=0, help="rest after so many events (0: never)")
    parser.add_argument("--record", metavar="FILE", help="write each message sent to FILE")
    options = parser.parse_args()
    if options.rate <= 0:
        parser.error(f"--rate {options.rate:g}: write how many RSVPs a second, more than 0")
    if options.late + options.duplicate + options.broken > 1:
        parser.error("--late, --duplicate and --broken are shares of one whole; together at most 1")
    try:
        # Line by line, so that the record is complete whenever the process ends.
        with open(options.record or os.devnull, "w", encoding="utf-8", buffering=1) as record:
            asyncio.run(simulate(options, record))
    except OSError as error:
        sys.exit(
            f"cannot simulate on port {options.port}: {error}; give another --port or --record"
        )


if __name__ == "__main__":
    main()
