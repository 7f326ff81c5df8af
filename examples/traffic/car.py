"""A car: reports where it is, and follows what others report of the road ahead.

    python -m examples.traffic.car --car car-07

It subscribes to the next segments of its route. Each time that it enters another segment, it
changes the filter of that subscription: the roads that come into sight arrive as changes, those
that it has left as deletes, and the connection stays the same.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from examples.traffic.city import Car, cars

from millstream.client import Change, Changes, Client, Sender, Snapshot
from millstream.errors import MillstreamError

AHEAD = 4  # segments: the one that the car is on, and the next three
Row = Mapping[str, Any]
Clock = Callable[[], int]  # milliseconds since the epoch
Show = Callable[[Row], None]


def now() -> int:
    return time.time_ns() // 1_000_000


async def drive(
    client: Client, sender: Sender, car: Car, show: Show, *, clock: Clock = now, pause: float = 1.0
) -> None:
    """Report the car's position after each pause, and show the roads ahead of it, for ever."""
    where = ahead_of(car, car.report(clock())["segment"])
    async with client.changes("roads", where=where) as roads, asyncio.TaskGroup() as tasks:
        tasks.create_task(_watch(roads, show))
        tasks.create_task(_steer(sender, car, roads, clock, pause))


def ahead_of(car: Car, segment: str) -> str:
    """The filter for the roads that matter to a car on this segment."""
    names = ", ".join(f"'{each}'" for each in car.ahead(segment, AHEAD))
    return f"city = '{car.city}' AND segment IN ({names})"


async def _steer(sender: Sender, car: Car, roads: Changes, clock: Clock, pause: float) -> None:
    segment = ""
    while True:
        at = clock()
        report = car.report(at)
        if report["segment"] != segment:
            segment = report["segment"]
            await roads.update(where=ahead_of(car, segment))
        await sender.send("positions", [{**report, "at": at}])
        await asyncio.sleep(pause)


async def _watch(roads: Changes, show: Show) -> None:
    async for message in roads:
        match message:
            case Snapshot(rows=several):
                for one in several:
                    show(one.row)
            case Change(row=dict(row)):
                show(row)


def print_road(road: Row) -> None:
    print(
        f"{road['at'][11:19]}  {road['segment']}  {road['speed']:5.2f} km/h  {road['condition']}",
        flush=True,
    )


async def main(options: argparse.Namespace) -> None:
    key = options.key_file.read_text().strip() if options.key_file else ""
    async with Client(*options.url, key=key) as client, Sender(options.collect) as sender:
        await drive(client, sender, cars()[options.car], print_road)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--car", choices=cars(), required=True, metavar="NAME", help="as in car-07")
    parser.add_argument(
        "--url", nargs="+", default=["http://127.0.0.1:8500"], help="the pipeline's servers"
    )
    parser.add_argument("--key-file", type=Path, help="has the API key, if the servers want one")
    parser.add_argument("--collect", default="http://127.0.0.1:8400", help="the collector")
    try:
        asyncio.run(main(parser.parse_args()))
    except* MillstreamError as several:
        sys.exit(f"error: {several.exceptions[0]}")
    except* KeyboardInterrupt:
        sys.exit(130)
