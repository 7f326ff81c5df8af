"""How long a collector takes to be there again: `python -m bench.recovery`.

A journal with so many pending entries, of which a part is in Kafka already, as after a crash. Then
the collector is started: it reads the journal, asks Kafka which of them it has, opens its door, and
sends the rest. Prints a table; `--write` puts it into the document.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import uvloop
from bench.senders import body_of

from bench import report
from millstream.collect.journal import Journal, JournalSettings
from millstream.collect.raw_message import RawMessage, encode
from millstream.collect.service import collecting
from millstream.collect.settings import CollectSettings
from millstream.log.broker import Broker
from millstream.log.consumer import bounds
from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.runtime.home import Home
from millstream.runtime.listen import bind
from millstream.settings import Settings

DOCUMENT = Path(__file__).parents[1] / "docs/explanation/performance.md"
BEGIN, END = "<!-- recovery measured -->", "<!-- end of recovery measured -->"
SCHEMA = "id LONG, key LONG, at TIMESTAMP, city STRING, text STRING"
ROOM = JournalSettings(max_bytes=8 << 30)


@dataclass(frozen=True)
class Measured:
    """The result of one start; times in seconds since the start."""

    entries: int
    share: float  # of the events that were already in Kafka
    opened: float  # the journal is read
    ready: float  # requests are accepted
    sent: float  # all events are in Kafka


def pipeline(name: str) -> App:
    app = App(name)
    app.stream("events", schema=SCHEMA, key="key")
    return app


def settings(log: LogSettings) -> Settings:
    return Settings(log=log, collect=CollectSettings(port=0), journal=ROOM)


async def fill(home: Home, count: int) -> None:
    """Pending journal entries as HTTP requests leave them, one event each."""
    journal = await Journal.open(home.journal / "0", ROOM)
    now = time.time_ns() // 1_000_000
    bodies = body_of(0, 1_000).split(b"\n")
    for first in range(0, count, 10_000):
        waiting = [
            journal.append(
                encode(RawMessage("events", now, bodies[n % 1_000], "application/json"))
            )[1]
            for n in range(first, min(first + 10_000, count))
        ]
        await asyncio.gather(*waiting)
    await journal.close()


async def start(app: App, log: LogSettings, home: Home, wanted: int) -> tuple[float, float]:
    """Seconds until requests are accepted, and until so many events are in Kafka."""
    began = time.perf_counter()
    async with collecting(app, settings(log), home, bind("127.0.0.1", 0, tier="collect")):
        ready = time.perf_counter() - began
        while await asyncio.to_thread(_logged, log, app) < wanted:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0.05)
        return ready, time.perf_counter() - began


async def measure(log: LogSettings, folder: Path, entries: int, share: float) -> Measured:
    app, home = pipeline(f"recovery{round(share * 100)}"), Home(folder / f"home{share}")
    await asyncio.to_thread(ensure_topics, app, log)
    await fill(home, round(entries * share))
    if share:
        # The journal as it was before Kafka got the events: after a crash nothing of it is settled.
        before = folder / "before"
        shutil.copytree(home.journal, before)
        await start(app, log, home, round(entries * share))
        shutil.rmtree(home.journal)
        before.rename(home.journal)
    await fill(home, entries - round(entries * share))
    opened = await _open(home)
    ready, sent = await start(app, log, home, entries)
    row = Measured(entries, share, opened, ready, sent)
    print(
        f"{entries:>9,} entries, {share:>4.0%} in Kafka: journal read {opened:.2f} s, "
        f"ready {ready:.2f} s, all in Kafka {sent:.2f} s",
        flush=True,
    )
    found = await asyncio.to_thread(_logged, log, app)
    if found != entries:
        raise SystemExit(f"{found:,} events are in Kafka, of {entries:,}")
    return row


async def _open(home: Home) -> float:
    journal = await Journal.open(home.journal / "0", ROOM)
    await journal.close()
    return journal.recovery.seconds


def _logged(log: LogSettings, app: App) -> int:
    spans = bounds(log, stream_topic(app.name, "events")).values()
    return sum(end - first for first, end in spans)


async def run(entries: int) -> list[Measured]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-bench-")))
        log = LogSettings(bootstrap=stack.enter_context(Broker(folder / "kafka")).bootstrap)
        return [await measure(log, folder, entries, share) for share in (0.0, 0.5, 1.0)]


def table(measured: Iterable[Measured]) -> str:
    rows = [
        [
            f"{row.share:.0%}",
            f"{row.opened * 1e6 / row.entries:.1f}",
            f"{row.ready * 1e6 / row.entries:.1f}",
            f"{row.sent * 1e6 / row.entries:.1f}",
        ]
        for row in measured
    ]
    return report.table(
        ["in Kafka already", "journal read, s", "senders let in, s", "all in Kafka, s"], rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--entries", type=int, default=200_000)
    parser.add_argument("--write", action="store_true", help=f"put it into {DOCUMENT.name}")
    options = parser.parse_args()
    busy = os.getloadavg()[0]
    measured = uvloop.run(run(options.entries))
    text = f"Seconds for a million pending entries:\n\n{table(measured)}"
    print(f"\n{text}")
    if options.write:
        how = (
            f"With {options.entries:,} entries of one event of some 550 bytes; load average before"
            f" the run {busy:.1f}."
        )
        report.replace(DOCUMENT, BEGIN, END, f"{report.machine()} {how}\n\n{text}")


if __name__ == "__main__":
    main()
