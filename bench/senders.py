"""Senders that each post again as soon as they are answered: `python -m bench.senders`.

A closed load: it finds the most that a server takes from so many senders. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from array import array
from collections import Counter
from typing import cast
from urllib.parse import urlsplit

import uvloop
from bench.load import CITIES, KEYS, TEXT, content_length


def body_of(first: int, batch: int) -> bytes:
    """The given number of events, one per line."""
    return "\n".join(
        f'{{"id":{n},"key":{n % KEYS},"at":{1_794_798_000_000 + n},"city":"{CITIES[n % 8]}",'
        f'"text":"{TEXT}"}}'
        for n in range(first, first + batch)
    ).encode()


class Sender(asyncio.Protocol):
    """One connection that sends one post at a time. Its posts are prepared in advance."""

    def __init__(self, crowd: Crowd, request: bytes) -> None:
        self.crowd, self.request = crowd, request
        self.received, self.sent = b"", 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def send(self) -> None:
        self.sent = time.perf_counter_ns()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        received = self.received + data if self.received else data
        head, separator, body = received.partition(b"\r\n\r\n")
        if not separator or (head[9:12] != b"204" and len(body) < content_length(head)):
            self.received = received
            return
        self.received = b""
        self.crowd.answered(head[9:12], time.perf_counter_ns() - self.sent)
        if self.crowd.going:
            self.send()

    def connection_lost(self, error: Exception | None) -> None:
        if self.crowd.going:
            self.crowd.statuses["lost"] += 1


class Crowd:
    """All senders, and the results of their posts after the warm-up."""

    def __init__(self) -> None:
        self.going = True
        self.statuses: Counter[str] = Counter()
        self.took = array("q")
        self.measuring = False

    def answered(self, status: bytes, nanoseconds: int) -> None:
        if self.measuring:
            self.statuses[status.decode()] += 1
            if status.startswith(b"2"):  # nothing of a refused post was accepted
                self.took.append(nanoseconds)


async def run(url: str, senders: int, batch: int, warm: float, seconds: float) -> dict[str, object]:
    parts, crowd, loop = urlsplit(url), Crowd(), asyncio.get_running_loop()
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    requests = []
    for number in range(senders):
        body = body_of(number * batch, batch)
        head = (
            f"POST {target} HTTP/1.1\r\nhost: {parts.netloc}\r\n"
            f"content-type: application/x-ndjson\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        requests.append(head.encode() + body)
    connected = [
        await loop.create_connection(
            lambda request=request: Sender(crowd, request),  # type: ignore[misc]
            parts.hostname or "",
            parts.port or 80,
        )
        for request in requests
    ]
    began = time.time()
    for _, sender in connected:
        sender.send()
    await asyncio.sleep(warm)
    crowd.measuring, started = True, time.perf_counter()
    await asyncio.sleep(seconds)
    crowd.measuring, elapsed = False, time.perf_counter() - started
    crowd.going = False
    for transport, _ in connected:
        transport.abort()
    took = sorted(crowd.took)
    return {
        "events": len(took) * batch,
        "seconds": elapsed,
        "began": began,
        "statuses": crowd.statuses,
        **{
            name: took[min(len(took) - 1, int(len(took) * share))] / 1e6 if took else None
            for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Post as fast as the answers come.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--senders", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--warm", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(
            run(options.url, options.senders, options.batch, options.warm, options.seconds)
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
