"""How long an event takes from its POST to a WebSocket client: `python -m bench.latency`.

For each view in each mode a system of its own is started, warmed up, and loaded at each rate in
turn, all on this machine. Writes the tables and the picture of docs/explanation/performance.md;
with --quick it only prints.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import uvloop
from bench.figures import Figures, Times, figures
from bench.load import batch_size
from bench.observe import Sightings, logged, watching
from bench.system import System, running

from bench import picture, report

DOCUMENT = Path(__file__).parents[1] / "docs/explanation/performance.md"
RUNS = [
    ("stateless", "real_time"),
    ("windowed", "real_time"),
    ("stateless", "micro_batch"),
    ("windowed", "micro_batch"),
]


@dataclass(frozen=True)
class Length:
    """Seconds: of warm-up when a system has just started, of warm-up at each rate, of measuring."""

    start: float
    warm: float
    measure: float


QUICK, FULL = Length(start=5, warm=3, measure=6), Length(start=20, warm=8, measure=30)


@dataclass(frozen=True)
class Sent:
    """What the load process reports about one event."""

    due: int
    acked: int
    status: int


class Bench:
    """The measurements on one running system."""

    def __init__(self, system: System, view: str, mode: str, length: Length) -> None:
        self.system, self.view, self.mode, self.length = system, view, mode, length
        self._next = 1  # event 0 was the test event

    async def measure(self, rate: int, *, stream: bool = False) -> Figures:
        """The figures at one rate, of the view or of the stream without analysis."""
        seen_of = {"stream": "events"} if stream else {"view": self.view}
        async with watching(self.system.serve, **seen_of) as seen:
            loading = asyncio.create_task(self.load(rate, self.length.warm + self.length.measure))
            await asyncio.sleep(self.length.warm)
            before, since = self.system.cpu(), time.monotonic()
            sent = await loading
            after, seconds = self.system.cpu(), time.monotonic() - since
            start = min(event.due for event in sent.values()) + int(self.length.warm * 1e9)
            wanted = {event: told for event, told in sent.items() if told.due >= start}
            await self._await_all(seen, max(wanted))
        return figures(
            "stream" if stream else self.view,
            "none" if stream else self.mode,
            rate,
            await asyncio.to_thread(self._times, wanted, seen, stream),
            refused=sum(told.status != 200 for told in wanted.values()),
            cores={tier: (after[tier] - before[tier]) / seconds for tier in after},
        )

    async def load(self, rate: int, seconds: float) -> dict[int, Sent]:
        """Send at this rate from another process."""
        with tempfile.NamedTemporaryFile("r", suffix=".ndjson", encoding="utf-8") as out:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bench.load", "--url", self.system.collect),
                *("--rate", str(rate), "--seconds", str(seconds), "--first", str(self._next)),
                *("--out", out.name),
            )
            if await process.wait() != 0:
                raise RuntimeError(f"the load at {rate} events/s ended with {process.returncode}")
            told = [json.loads(line) for line in out]
        self._next = max(row["id"] for row in told) + 1
        return {row["id"]: Sent(row["due"], row["acked"], row["status"]) for row in told}

    async def _await_all(self, seen: Sightings, last: int) -> None:
        """Wait for the newest event, and one more second for events that it has overtaken."""
        end = time.monotonic() + 30
        while seen.newest < last and time.monotonic() < end:  # noqa: ASYNC110 - nothing to await
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)

    def _times(self, sent: dict[int, Sent], seen: Sightings, stream: bool) -> Times:
        grouped = self.view == "windowed" and not stream
        bootstrap = self.system.bootstrap
        resulted = (
            {} if stream else first(logged(bootstrap, f"bench.view.{self.view}"), sent, grouped)
        )
        return Times(
            due={event: told.due for event, told in sent.items()},
            acked={event: told.acked for event, told in sent.items()},
            collected=first(logged(bootstrap, "bench.stream.events"), sent, False),
            resulted=resulted,
            seen=first(seen, sent, grouped),
        )


def first(sightings: Sightings, events: Iterable[int], grouped: bool) -> dict[int, int]:
    return sightings.first_seen(events, grouped=grouped)


async def run(rates: list[int], length: Length, runs: list[tuple[str, str]]) -> list[Figures]:
    measured: list[Figures] = []
    for number, (view, mode) in enumerate(runs, 1):
        say(f"[{number}/{len(runs)}] starting: {view}, {mode}")
        async with running(view, mode) as system:
            bench = Bench(system, view, mode, length)
            say(f"  warming up for {length.start:g} s")
            await bench.load(min(1_000, max(rates)), length.start)
            if number == 1:
                for rate in rates:
                    measured.append(await bench.measure(rate, stream=True))
                    tell(measured[-1])
            for rate in rates:
                measured.append(await bench.measure(rate))
                tell(measured[-1])
    return measured


def tell(f: Figures) -> None:
    whole = (
        f"p50 {f.whole.p50:.1f} p99 {f.whole.p99:.1f} max {f.whole.max:.1f} ms" if f.whole else "–"
    )
    steps = ", ".join(f"{name} {step.p50:.1f}" for name, step in f.steps.items() if step)
    cores = " ".join(f"{tier} {used:.2f}" for tier, used in f.cores.items())
    say(f"  {f.view} {f.mode} at {f.rate:,}/s: {whole} (p50 of {steps}; cores {cores})")
    if f.missing or f.refused:
        say(f"  ! {f.missing} of {f.sent} events missing, {f.refused} posts refused")


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="short and rough; writes nothing")
    parser.add_argument("--rates", type=int, nargs="+", default=[100, 1_000, 3_000])
    parser.add_argument("--views", nargs="+", choices=["stateless", "windowed"])
    parser.add_argument("--modes", nargs="+", choices=["real_time", "micro_batch"])
    options = parser.parse_args()
    length = QUICK if options.quick else FULL
    runs = [
        (view, mode)
        for view, mode in RUNS
        if view in (options.views or [view]) and mode in (options.modes or [mode])
    ]
    if os.getloadavg()[0] > (os.cpu_count() or 1) / 2:
        say(f"! load average {os.getloadavg()[0]:.1f}: this machine is busy, figures are too high")
    measured = uvloop.run(run(options.rates, length, runs))
    say(f"\n{report.machine()}\n\n{report.tables(measured)}")
    if not options.quick and runs == RUNS:
        batches = ", ".join(f"{batch_size(rate)} at {rate:,}/s" for rate in options.rates)
        how = (
            f"Each figure over {length.measure:g} s after warm-up; sender, tiers and client on the"
            f" same machine; events in a POST: {batches}."
        )
        report.write(DOCUMENT, measured, how)
        DOCUMENT.with_suffix(".svg").write_text(picture.draw(measured), encoding="utf-8")
        say(f"\nwrote {DOCUMENT.name} and its picture")


if __name__ == "__main__":
    main()
