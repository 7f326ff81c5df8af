"""Many clients in one process: `python -m bench.fanout_clients`, started by `bench.fanout`.

Reads a JSON object from stdin: what to connect to, and how. Prints `connected` when all clients
are, and a JSON object with the figures when all messages came, or none comes any more.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

MARK = b'"at":'  # before the time of sending, in nanoseconds
_SAMPLE = 7  # the latency of every so-many-th message is recorded
_SILENCE = 20.0  # seconds without a message, after which the rest is given up


@dataclass
class Counted:
    """What all clients got together."""

    wanted: int
    got: int = 0
    size: int = 0  # bytes
    began: float = 0.0
    ended: float = 0.0
    latencies: list[float] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, message: bytes) -> None:
        at = message.find(MARK)
        if at < 0:  # a snapshot, or the greeting of NATS
            return
        now = time.time()
        self.began = self.began or now
        self.ended, self.got, self.size = now, self.got + 1, self.size + len(message)
        if self.got % _SAMPLE == 0:
            sent = int(message[at + len(MARK) : at + len(MARK) + 19])
            self.latencies.append((time.time_ns() - sent) / 1e6)
        if self.got >= self.wanted:
            self.done.set()

    @property
    def figures(self) -> dict[str, float]:
        seconds, ordered = max(self.ended - self.began, 1e-6), sorted(self.latencies) or [0.0]
        return {
            "got": self.got,
            "per_second": self.got / seconds,
            "bytes_per_second": self.size / seconds,
            "p50": ordered[len(ordered) // 2],
            "p99": ordered[len(ordered) * 99 // 100],
        }


class Client(WSListener):
    """A WebSocket client that counts."""

    def __init__(self, counted: Counted, hello: list[str], reads: bool) -> None:
        super().__init__()
        self._counted = counted
        self._hello = hello
        self._reads = reads

    def on_ws_connected(self, transport: WSTransport) -> None:
        for text in self._hello:
            kind = WSMsgType.TEXT if text.startswith("{") else WSMsgType.BINARY
            transport.send(kind, text.encode())
        if not self._reads:
            transport.underlying_transport.pause_reading()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        payload = frame.get_payload_as_bytes()
        if payload.count(MARK) <= 1:
            self._counted.add(payload)
            return
        for part in payload.split(MARK)[1:]:  # NATS may put several messages into a frame
            self._counted.add(MARK + part)


class EventClient(asyncio.Protocol):
    """A client of server-sent events that counts."""

    def __init__(self, counted: Counted, host: str, path: str) -> None:
        self._counted = counted
        self._request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n\r\n"
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._request.encode())  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            self._counted.add(event)


async def run(given: dict[str, Any]) -> dict[str, float]:
    counted = Counted(given["wanted"])
    held: list[Any] = []
    url, gate = urlsplit(given["url"]), asyncio.Semaphore(50)

    async def connect(number: int) -> None:
        async with gate:
            loop = asyncio.get_running_loop()
            if given.get("events"):
                made = EventClient(counted, url.netloc, given["events"])
                held.append(await loop.create_connection(lambda: made, url.hostname, url.port))
                return
            hello = [text.replace("{n}", str(number)) for text in given["hello"]]
            reads = number >= given.get("silent", 0)
            held.append(await ws_connect(lambda: Client(counted, hello, reads), given["url"]))

    await asyncio.gather(*(connect(number) for number in range(given["clients"])))
    await asyncio.sleep(1.0)  # the servers have no message that says that all have subscribed
    print("connected", flush=True)
    last = -1
    while not counted.done.is_set() and (counted.got != last or not counted.got):
        last = counted.got
        try:
            await asyncio.wait_for(counted.done.wait(), given.get("silence", _SILENCE))
        except TimeoutError:
            if not counted.got:
                break
    return counted.figures


def main() -> None:
    print(json.dumps(uvloop.run(run(json.loads(sys.stdin.readline())))), flush=True)


if __name__ == "__main__":
    main()
