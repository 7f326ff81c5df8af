"""Sends events at a fixed rate, whatever the system does: `python -m bench.load`.

Every post has its moment in a schedule, and its latency counts from there. A system that stalls
does not slow the schedule down: posts that had to wait are counted with their wait (no coordinated
omission). A process of its own, so that it does not share an interpreter with what measures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from array import array
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import uvloop

KEYS = 1_000  # few enough that groups repeat, many enough that two posts never use the same group
MOST_CONNECTIONS = 256
TEXT = "x" * 450  # makes an event about 550 bytes long
CITIES = (
    "Amsterdam",
    "Buenos Aires",
    "Chicago",
    "Delhi",
    "Edinburgh",
    "Freetown",
    "Genoa",
    "Hanoi",
)


class Plan:
    """Which events are posted when: `batch` events every `batch / rate` seconds."""

    def __init__(self, first: int, rate: int, seconds: float, start: int) -> None:
        self.batch = batch_size(rate)
        self.first, self.start = first, start  # start in nanoseconds since the epoch
        self.interval = round(self.batch / rate * 1e9)
        self.posts = round(rate * seconds / self.batch)

    def due(self, post: int) -> int:
        return self.start + post * self.interval

    def ids(self, post: int) -> range:
        return range(self.first + post * self.batch, self.first + (post + 1) * self.batch)

    def body(self, post: int) -> bytes:
        at = self.due(post) // 1_000_000
        return b"\n".join(event(n, at) for n in self.ids(post))


def event(n: int, at: int) -> bytes:
    """The n-th event, at a time in milliseconds since the epoch."""
    return (
        f'{{"id":{n},"key":{n % KEYS},"at":{at},"city":"{CITIES[n % 8]}","text":"{TEXT}"}}'
    ).encode()


def batch_size(rate: int) -> int:
    """Events in a post: one, up to a thousand posts a second."""
    return max(1, rate // 1_000)


class Connection(asyncio.Protocol):
    """Sends one post at a time, with minimal HTTP."""

    def __init__(self, load: Load) -> None:
        self.load, self.post, self.received = load, -1, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport has another class
        self.load.free(self)

    def send(self, post: int) -> None:
        self.post = post
        body = self.load.plan.body(post)
        self.transport.write(self.load.head + f"{len(body)}\r\n\r\n".encode() + body)

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, separator, body = self.received.partition(b"\r\n\r\n")
        if not separator or len(body) < content_length(head):
            return
        self.received = b""
        self.load.answered(self.post, int(head[9:12]))
        self.post = -1
        self.load.free(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.load.lost(self)


def content_length(head: bytes) -> int:
    lower = head.lower()
    at = lower.index(b"content-length:") + len(b"content-length:")
    return int(lower[at : at + 12].split(b"\r")[0])


class Load:
    """Sends the posts of a plan, over as many connections as needed."""

    def __init__(self, url: str, plan: Plan) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 80
        self.plan = plan
        self.head = (
            f"POST /v1/streams/events HTTP/1.1\r\nhost: {parts.netloc}\r\n"
            "content-type: application/x-ndjson\r\ncontent-length: "
        ).encode()
        self.start = array("q", bytes(8 * plan.posts))
        self.acked = array("q", bytes(8 * plan.posts))
        self.status = array("q", bytes(8 * plan.posts))
        self._idle: list[Connection] = []
        self._waiting: deque[int] = deque()
        self._open = 0
        self._left = plan.posts
        self._done = asyncio.Event()

    async def run(self) -> None:
        for post in range(self.plan.posts):
            due = self.plan.due(post)
            wait = due - time.time_ns()
            if wait > 0 or post % 16 == 0:
                await asyncio.sleep(max(wait, 0) / 1e9)
            # uvloop's timers may fire a millisecond early: then the time of sending counts.
            self.start[post] = min(due, time.time_ns())
            self._offer(post)
        async with asyncio.timeout(60):
            await self._done.wait()

    def close(self) -> None:
        for connection in self._idle:
            connection.transport.close()

    def free(self, connection: Connection) -> None:
        if self._waiting:
            connection.send(self._waiting.popleft())
        else:
            self._idle.append(connection)

    def answered(self, post: int, status: int) -> None:
        self.acked[post], self.status[post] = time.time_ns(), status
        self._left -= 1
        if not self._left:
            self._done.set()

    def lost(self, connection: Connection) -> None:
        self._open -= 1
        if connection.post >= 0:
            self.answered(connection.post, 0)
        elif connection in self._idle:
            self._idle.remove(connection)

    def _offer(self, post: int) -> None:
        if self._idle:
            self._idle.pop().send(post)
            return
        self._waiting.append(post)
        if self._open < MOST_CONNECTIONS:
            self._open += 1
            self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: Connection(self), self.host, self.port)


def rows(load: Load) -> Iterator[dict[str, int]]:
    plan = load.plan
    for post in range(plan.posts):
        for event in plan.ids(post):
            yield {
                "id": event,
                "due": load.start[post],
                "acked": load.acked[post],
                "status": load.status[post],
            }


def main() -> None:
    parser = argparse.ArgumentParser(description="Send events at a fixed rate.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--rate", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--first", type=int, default=0, help="the first event's id")
    parser.add_argument("--out", type=Path, required=True, help="lines of id, due, acked, status")
    options = parser.parse_args()
    plan = Plan(options.first, options.rate, options.seconds, time.time_ns() + 300_000_000)
    load = Load(options.url, plan)
    uvloop.run(load.run())
    with open(options.out, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows(load))


if __name__ == "__main__":
    main()
