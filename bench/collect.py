"""How much one collector takes in, and how soon it answers: `python -m bench.collect`.

In the same run: the collector in each ack mode, the same HTTP server that does nothing with the
body, and a bare producer. Prints tables with the ratios; `--write` puts them into the document.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench import report
from millstream.log.broker import Broker

DOCUMENT = Path(__file__).parents[1] / "docs/explanation/performance.md"
BEGIN, END = "<!-- collector measured -->", "<!-- end of collector measured -->"
PIPELINE = """
from millstream import App
app = App("bench")
SCHEMA = "id LONG, key LONG, at TIMESTAMP, city STRING, text STRING"
app.stream("events", schema=SCHEMA, key="key", delivery="at_least_once")
app.stream("quick", schema=SCHEMA, key="key", delivery="at_most_once")
"""
MODES = {"log": "events?ack=log", "local": "events?ack=local", "none": "quick?ack=none"}


@dataclass(frozen=True)
class Measured:
    """The result of one server under one kind of load."""

    what: str
    senders: int
    batch: int
    rate: float
    p50: float
    p99: float
    greatest: float
    refused: int
    sustained: float | None  # events/s, from the first post until Kafka has the last


async def measure(
    what: str, address: str, senders: int, batch: int, seconds: float, collector: str = ""
) -> Measured:
    """Send load to an address; `collector` is asked how much of it is in Kafka."""
    before = await at_rest(collector) if collector else 0.0
    found = await _run_json(
        *("bench.senders", "--url", address, "--senders", str(senders), "--batch", str(batch)),
        *("--seconds", str(seconds)),
    )
    sustained = None
    if collector:
        logged = await at_rest(collector) - before
        sustained = logged / (time.time() - found["began"])
    refused = sum(n for status, n in found["statuses"].items() if not status.startswith("2"))
    row = Measured(
        what,
        senders,
        batch,
        found["events"] / found["seconds"],
        found["p50"] or 0.0,
        found["p99"] or 0.0,
        found["max"] or 0.0,
        refused,
        sustained,
    )
    print(
        f"{what:>12}  {senders:>5} senders  {batch:>5} a post  {row.rate:>9,.0f} events/s"
        f"  {_kept(row):>9} until in Kafka  p50 {row.p50:.2f}  p99 {row.p99:.2f} ms"
        f"  refused {refused}",
        flush=True,
    )
    return row


async def run(loads: list[tuple[int, int]], seconds: float) -> tuple[list[Measured], float]:
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-bench-")))
        bootstrap = stack.enter_context(Broker(folder / "kafka")).bootstrap
        url = await stack.enter_async_context(_collector(folder, bootstrap))
        other = await stack.enter_async_context(_server())
        producer = await _run_json(
            *("bench.references", "producer", "--bootstrap", bootstrap),
            *("--topic", "bench.stream.events", "--seconds", str(seconds)),
        )
        bare = producer["events"] / producer["seconds"]
        print(f"bare producer: {bare:,.0f} events/s", flush=True)
        measured = []
        for senders, batch in loads:
            measured.append(await measure("no work", other, senders, batch, seconds))
            for mode, path in MODES.items():
                address = f"{url}/v1/streams/{path}"
                row = await measure(f"ack={mode}", address, senders, batch, seconds, url)
                measured.append(row)
        return measured, bare


async def at_rest(url: str) -> float:
    """How many events Kafka has, after all earlier load has reached it."""
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http:
        deadline = time.monotonic() + 60
        while True:
            metrics = (await http.get("/metrics")).text
            if not _sum(metrics, "millstream_collect_pending{"):
                return _sum(metrics, "millstream_collect_logged_total{")
            if time.monotonic() > deadline:
                raise SystemExit("the collector still has events that are not in Kafka")
            await asyncio.sleep(0.02)


def _sum(metrics: str, name: str) -> float:
    lines = metrics.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@contextlib.asynccontextmanager
async def _collector(folder: Path, bootstrap: str) -> AsyncIterator[str]:
    pipeline = folder / "pipeline.py"
    pipeline.write_text(PIPELINE)
    async with _process(
        *("millstream", "collect", str(pipeline), "--home", str(folder / "home")),
        *("--collect-port", "0", "--set", f"log.bootstrap={bootstrap}"),
    ) as said:
        yield (await said.readline()).decode().split()[-1]  # "collect ready on http://…"


@contextlib.asynccontextmanager
async def _server() -> AsyncIterator[str]:
    async with _process("bench.references", "server") as said:
        yield (await said.readline()).decode().strip()


@contextlib.asynccontextmanager
async def _process(*arguments: str) -> AsyncIterator[asyncio.StreamReader]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _run_json(*arguments: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *arguments, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}")
    found: dict[str, Any] = json.loads(output)
    return found


def table(measured: Iterable[Measured], bare: float) -> str:
    rows = list(measured)
    idle = {(row.senders, row.batch): row.rate for row in rows if row.what == "no work"}
    body = [
        [
            str(row.senders),
            f"{row.batch:,}",
            row.what,
            f"{row.rate:,.0f}",
            _kept(row),
            f"{row.p50:.2f}",
            f"{row.p99:.2f}",
            f"{row.greatest:.1f}",
            f"{row.rate / idle[row.senders, row.batch]:.2f}",
            f"{row.rate / bare:.2f}",
        ]
        for row in rows
    ]
    head = ["senders", "events a post", "", "events/s", "until in Kafka", "p50 ms", "p99", "max"]
    return report.table([*head, "of a server without work", "of a bare producer"], body)


def _kept(row: Measured) -> str:
    return "–" if row.sustained is None else f"{row.sustained:,.0f}"


def aims(measured: Iterable[Measured], bare: float) -> str:
    """The goals, and what was reached."""
    rows = {(row.what, row.senders, row.batch): row for row in measured}
    lines = []
    if ("ack=local", 64, 1) in rows:
        single, idle = rows["ack=local", 64, 1], rows["no work", 64, 1]
        lines += [
            _aim("single events, ack=local, 64 senders", single.rate / idle.rate, "no work"),
            f"- p99 of these: {single.p99:.1f} ms, of less than 10 aimed at:"
            f" {'met' if single.p99 < 10 else 'missed'}.",
        ]
    batches = [row for row in rows.values() if row.what == "ack=local" and row.batch > 1]
    if batches:
        answered = max(row.rate for row in batches) / bare
        lasting = max(row.sustained or 0.0 for row in batches) / bare
        lines += [
            _aim("batches of 1,000, ack=local, answered", answered, "a bare producer"),
            _aim("the same until all is in Kafka", lasting, "a bare producer"),
        ]
    return "\n".join(lines)


def _aim(what: str, ratio: float, of: str) -> str:
    return (
        f"- {what}: {ratio:.2f} of {of}, of half or more aimed at:"
        f" {'met' if ratio >= 0.5 else 'missed'}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each figure")
    parser.add_argument("--quick", action="store_true", help="2 s each, and fewer loads")
    parser.add_argument("--write", action="store_true", help=f"put it into {DOCUMENT.name}")
    options = parser.parse_args()
    loads = [(1, 1), (64, 1), (1_000, 1), (1, 1_000), (64, 1_000)]
    seconds = options.seconds
    if options.quick:
        loads, seconds = [(64, 1), (8, 1_000)], 2.0
    busy = os.getloadavg()[0]
    if busy > (os.cpu_count() or 1) / 2:
        print(f"! load average {busy:.1f}: this machine is busy; only the ratios say something")
    measured, bare = asyncio.run(run(loads, seconds))
    text = (
        f"A bare producer with acks=all: {bare:,.0f} events/s.\n\n{table(measured, bare)}\n\n"
        f"{aims(measured, bare)}"
    )
    print(f"\n{text}")
    if options.write:
        how = f"Each figure over {seconds:g} s; load average before the run {busy:.1f}."
        report.replace(DOCUMENT, BEGIN, END, f"{report.machine()} {how}\n\n{text}")


if __name__ == "__main__":
    main()
