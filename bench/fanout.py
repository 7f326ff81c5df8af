"""What a server delivers to many clients: `python -m bench.fanout [--quick] [--no-nats]`.

Each comparison runs against a named reference in the same run, so the ratios hold on any machine:
a bare picows server that sends the same bytes to the same clients, and NATS over its WebSocket.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.fanout_references import running_nats
from bench.startup import NAME, fill, memory, start_server
from confluent_kafka import Producer

from millstream.log.broker import Broker
from millstream.log.connection import client_config
from millstream.log.settings import LogSettings
from millstream.log.topic_names import view_topic

_ROW = 500  # bytes of a change, about
_TICKS = os.sysconf("SC_CLK_TCK")
Figures = dict[str, float]


@dataclass(frozen=True)
class Size:
    """How large a run is."""

    clients: int
    changes: int  # for throughput
    rate: int  # changes a second, for latency and filters
    seconds: float
    idle: int


QUICK = Size(clients=100, changes=300, rate=200, seconds=3, idle=500)
FULL = Size(clients=1_000, changes=1_000, rate=1_000, seconds=10, idle=10_000)


class Server:
    """A running server of ours, and its view's topic."""

    def __init__(self, process: subprocess.Popen[str], url: str, log: LogSettings) -> None:
        self.pid = process.pid
        self.url = url
        self.socket_url = url.replace("http", "ws") + "/v1/connect"
        self._producer = Producer(client_config(log, linger_ms=0))
        self._revision = 0

    def send(self, number: int, keys: int) -> None:
        """Write a change of `_ROW` bytes to the view."""
        self._revision += 1
        row = {
            "city": f"city {number % keys}",
            "n": number % 1_000,
            "newest": "x" * (_ROW - 150),
            "at": time.time_ns(),
            "_revision": self._revision,
        }
        text = json.dumps(row, separators=(",", ":"))
        key = json.dumps([row["city"]], separators=(",", ":"))
        self._producer.produce(view_topic(NAME, "by_city"), text, key)
        self._producer.poll(0)

    def flush(self) -> None:
        self._producer.flush(30)


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "kafka") as broker:
        log = LogSettings(bootstrap=broker.bootstrap)
        fill(log, 1)
        process = start_server(broker.bootstrap, Path(folder) / "home")
        try:
            assert process.stdout is not None
            yield Server(process, process.stdout.readline().split()[-1], log)
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def clients(**given: Any) -> Iterator[Callable[[], Figures]]:
    """Connected clients; the function waits until they have got all, and returns the figures."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.fanout_clients"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    output = process.stdout
    try:
        process.stdin.write(json.dumps(given) + "\n")
        process.stdin.flush()
        assert output.readline().strip() == "connected", "the clients could not connect"
        yield lambda: json.loads(output.readline())
    finally:
        process.kill()
        process.wait()


def subscribe(where: str = "") -> list[str]:
    message = {"type": "subscribe", "id": "a", "view": "by_city", "limit": 0}
    return [json.dumps({**message, **({"where": where} if where else {})})]


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def at_rate(send: Callable[[int], None], rate: int, seconds: float) -> int:
    """Call `send` at a steady rate; how often."""
    began, count = time.monotonic(), int(rate * seconds)
    for number in range(count):
        if (wait := began + number / rate - time.monotonic()) > 0:
            time.sleep(wait)
        send(number)
    return count


def ours(server: Server, size: Size, **transport: Any) -> Figures:
    before = cpu(server.pid)
    with clients(clients=size.clients, wanted=size.clients * size.changes, **transport) as result:
        for number in range(size.changes):
            server.send(number, 50)
        server.flush()
        return {**result(), "cpu": cpu(server.pid) - before}


def bare(size: Size) -> Figures:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.fanout_references"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = f"ws://127.0.0.1:{process.stdout.readline().strip()}/"
        wanted = size.clients * size.changes
        with clients(url=url, clients=size.clients, wanted=wanted, hello=[]) as result:
            for _ in range(size.changes):
                process.stdin.write(message() + "\n")
            process.stdin.flush()
            return {**result(), "cpu": cpu(process.pid)}
    finally:
        process.kill()
        process.wait()


def message() -> str:
    """As long as one of our changes on the WebSocket."""
    return json.dumps(
        {"type": "change", "at": time.time_ns(), "row": "x" * (_ROW - 20)}, separators=(",", ":")
    )


def nats(size: Size) -> Figures:
    hello = ["CONNECT {}\r\nSUB changes 1\r\nPING\r\n"]
    with running_nats() as (process, plain, web):
        url, wanted = f"ws://127.0.0.1:{web}/", size.clients * size.changes
        with (
            clients(url=url, clients=size.clients, wanted=wanted, hello=hello) as result,
            socket.create_connection(("127.0.0.1", plain)) as publisher,
        ):
            publisher.sendall(b"CONNECT {}\r\n")
            for _ in range(size.changes):
                body = message().encode()
                publisher.sendall(b"PUB changes %d\r\n%b\r\n" % (len(body), body))
            return {**result(), "cpu": cpu(process.pid)}


def fan_out(server: Server, size: Size, with_nats: bool) -> None:
    reference = bare(size)
    show("bare picows", reference, reference)
    if with_nats:
        show("NATS", nats(size), reference)
    socket_ = ours(server, size, url=server.socket_url, hello=subscribe())
    show("WebSocket", socket_, reference)
    path = "/v1/views/by_city/changes?limit=0"
    show("server-sent events", ours(server, size, url=server.url, events=path), reference)


def filters(server: Server, size: Size) -> None:
    """CPU per change with few and with many filters: equality must cost the same."""
    for name, where in (("field = constant", "city = 'city {n}'"), ("arbitrary", "n % 1000 = {n}")):
        for count in (10, size.clients):
            keys, silence = size.clients, 3.0
            hello = subscribe(where)
            with clients(
                url=server.socket_url, clients=count, wanted=10**9, hello=hello, silence=silence
            ) as result:
                before = cpu(server.pid)
                changes = at_rate(lambda n, k=keys: server.send(n, k), size.rate, size.seconds)  # type: ignore[misc]
                used, found = cpu(server.pid) - before, result()
            print(
                f"{name:20} {count:6,} clients: {used / changes * 1e6:8.0f} µs CPU a change, "
                f"{found['got']:,.0f} delivered, p99 {found['p99']:.1f} ms"
            )


def idle(server: Server, size: Size) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(size.idle, hard - 500)
    before, _ = memory(server.pid)
    with clients(url=server.socket_url, clients=count, wanted=1, hello=subscribe()):
        after, _ = memory(server.pid)
        began = time.perf_counter()
        for _ in range(20):
            urllib.request.urlopen(f"{server.url}/health/live").read()
        live = (time.perf_counter() - began) / 20 * 1000
    each = (after - before) * 1024 / count
    print(f"{count:,} idle connections: {each:.1f} kB each; /health/live takes {live:.1f} ms")


def slow_readers(server: Server, size: Size) -> None:
    for silent in (0, 50):
        wanted = 50 * int(size.rate * size.seconds)
        with clients(
            url=server.socket_url,
            clients=50 + silent,
            silent=silent,
            wanted=wanted,
            hello=subscribe(),
        ) as result:
            at_rate(lambda n: server.send(n, 50), size.rate, size.seconds)
            found = result()
        print(
            f"50 clients beside {silent:2} that never read: {found['got']:,.0f} of {wanted:,} "
            f"delivered, p50 {found['p50']:.1f} ms, p99 {found['p99']:.1f} ms"
        )


def show(name: str, figures: Figures, reference: Figures) -> None:
    per_cpu = figures["got"] / max(figures["cpu"], 0.01)
    print(
        f"{name:20} {figures['per_second']:10,.0f} messages/s "
        f"({figures['per_second'] / reference['per_second']:.2f} of bare picows), "
        f"{per_cpu:10,.0f} per second of CPU, "
        f"p50 {figures['p50']:.1f} ms, p99 {figures['p99']:.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small, to see that it works")
    parser.add_argument("--no-nats", action="store_true", help="do not install and run NATS")
    given = parser.parse_args()
    size = QUICK if given.quick else FULL
    with serving() as server:
        fan_out(server, size, not given.no_nats)
        filters(server, size)
        idle(server, size)
        slow_readers(server, size)


if __name__ == "__main__":
    main()
