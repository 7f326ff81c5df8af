"""What each kind of window costs, and PyFlink beside it: `python -m bench.windows`.

One Kafka. For each kind of window and mode the analysis tier is started on it, and once PyFlink on
the same one-minute count; each gets a burst of events, which shows how many it takes, and then
events at a steady rate, which shows how soon each is in a result. Writes its part of
docs/explanation/performance.md; with --quick it only prints.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.engines import Engine, Refused, analyzing, prepare_topics
from bench.figures import Latency, between
from bench.flink import VERSION, Flink, prepare
from bench.load import KEYS, event
from bench.observe import Rows, Sightings
from confluent_kafka import Producer

from bench import report
from millstream.errors import MillstreamError
from millstream.log.broker import Broker
from millstream.log.connection import client_config
from millstream.log.settings import LogSettings

DOCUMENT = Path(__file__).parents[1] / "docs/explanation/performance.md"
BEGIN, END = "<!-- windows measured -->", "<!-- end of windows measured -->"
KINDS = ("tumbling", "sliding", "session", "count")
MODES = ("real_time", "micro_batch")
NAMES = {
    "tumbling": "tumbling, 1 minute",
    "sliding": "sliding, 1 minute each 10 s",
    "session": "session, gap 0.5 s",
    "count": "count, 5 events",
}
FLINK = f"PyFlink {VERSION}"
BOTH_COMPILERS = "real-time, both compilers"  # as PyFlink's JVM has them by default
# The last events have no result yet: no later event ends their session, or fills their count.
HELD_BACK = {"session": KEYS, "count": 5 * KEYS}
TIMEOUT = 180.0  # seconds; for the first row, and for the last


@dataclass(frozen=True)
class Length:
    """The amount of load: events of a burst, and rate and seconds of the steady load."""

    burst: int
    rate: int
    warm: float
    measure: float


QUICK, FULL = Length(20_000, 500, 3, 6), Length(100_000, 1_000, 8, 30)


@dataclass(frozen=True)
class Figures:
    """The result of one kind of window in one engine and mode."""

    kind: str
    engine: str  # a mode of ours, or PyFlink
    latency: Latency | None = None  # from the scheduled time to the result in Kafka
    drained: float = 0.0  # events/s of a burst
    missing: int = 0
    refused: str = ""  # why it cannot run


class Bench:
    """Measures one running engine."""

    def __init__(self, log: LogSettings, engine: Engine, length: Length, kind: str) -> None:
        self.engine, self.length, self.kind = engine, length, kind
        # Each event is sent at once: waiting in the producer must not count as latency.
        config = client_config(log, linger_ms=0, queue_buffering_max_messages=1_000_000)
        self._producer = Producer(config)
        self._rows = Rows(log.bootstrap, engine.sink)
        self._next = 1

    def measure(self, name: str) -> Figures:
        self._await_first()
        self._burst(self.length.burst // 2)  # warms up the compiler
        drained = self._burst(self.length.burst)
        due = self._steadily()
        seen = self._await_rest(max(due) - HELD_BACK.get(self.kind, 0))
        # The row of a count window belongs to the event that filled it; the others have none.
        found = seen.first_seen(due, grouped=self.kind != "count")
        missing = 0 if self.kind in HELD_BACK else len(due.keys() - found.keys())
        return Figures(self.kind, name, Latency.of(between(due, found)), drained, missing)

    def _await_first(self) -> None:
        """Send events from an hour ago until the first result is there."""
        hour_ago, deadline = _now() - 3_600_000, time.monotonic() + TIMEOUT
        while not self._rows.look().ids:
            self.engine.check()
            if time.monotonic() > deadline:
                raise MillstreamError(f"{self.engine.sink} got no row in {TIMEOUT:g} s")
            # The second event closes the window of the first, for results that wait for the end.
            for later in (0, 600_000):
                self._produce(0, hour_ago + later)
            self._producer.flush(10)
            time.sleep(0.5)

    def _burst(self, count: int) -> float:
        """Events/s at which a burst is processed; its events are dated in the past."""
        first, start = self._next, _now() - count  # one each millisecond, up to now
        began = time.time_ns()
        for number in range(count):
            self._produce(first + number, start + number)
        self._producer.flush(60)
        self._next += count
        told = count - HELD_BACK.get(self.kind, 0)
        last = first + told - 1
        seen = self._await_event(last).first_seen([last], grouped=True)
        return told / ((seen[last] - began) / 1e9)

    def _steadily(self) -> dict[int, int]:
        """Send at the rate; returns when each event was due (nanoseconds), without the warm-up."""
        length, start = self.length, time.time_ns() + 100_000_000
        due: dict[int, int] = {}
        for number in range(round(length.rate * (length.warm + length.measure))):
            at = start + round(number / length.rate * 1e9)
            if (wait := at - time.time_ns()) > 0:
                time.sleep(wait / 1e9)
            self._produce(self._next + number, at // 1_000_000)
            if number >= length.rate * length.warm:
                due[self._next + number] = at
        self._next += number + 1
        self._producer.flush(10)
        return due

    def _await_event(self, wanted: int) -> Sightings:
        """Wait until a row shows the event."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            seen = self._rows.look()
            if wanted in seen.first_seen([wanted], grouped=True):
                return seen
            self.engine.check()
            if time.monotonic() > deadline:
                raise MillstreamError(f"{self.engine.sink} did not show event {wanted}")
            time.sleep(0.5)

    def _await_rest(self, wanted: int) -> Sightings:
        """Wait until a row shows the event, and the rows after it have arrived."""
        seen, before = self._await_event(wanted), -1
        while len(seen.ids) > before:
            before = len(seen.ids)
            time.sleep(2)
            seen = self._rows.look()
        return seen

    def _produce(self, number: int, at: int) -> None:
        while True:
            try:
                self._producer.produce(self.engine.source, event(number, at), str(number % KEYS))
                break
            except BufferError:
                self._producer.poll(0.01)
        self._producer.poll(0)


def run(
    log: LogSettings, length: Length, wanted: Sequence[tuple[str, str]], flink: Flink | None
) -> list[Figures]:
    """Run the reference, then each kind and mode, one of them with the reference's compilers."""
    measured = []
    if flink is not None:
        topics = prepare_topics(log, "flink.events", "flink.counts")
        measured.append(_one(log, length, "tumbling", FLINK, partial(flink.counting, log, *topics)))
    for kind, mode in wanted:
        measured.append(_one(log, length, kind, mode, partial(analyzing, log, kind, mode)))
        if (kind, mode) == ("tumbling", "real_time"):
            compiled_twice = partial(analyzing, log, kind, mode, second_compiler=True)
            measured.append(_one(log, length, kind, BOTH_COMPILERS, compiled_twice))
    return measured


def _one(
    log: LogSettings,
    length: Length,
    kind: str,
    name: str,
    start: Callable[[], AbstractContextManager[Engine]],
) -> Figures:
    say(f"starting: {NAMES[kind]}, {report.MODES.get(name, name)}")
    try:
        with start() as engine:
            figures = Bench(log, engine, length, kind).measure(name)
    except Refused as refused:
        say(f"  not so: {refused.message}")
        return Figures(kind, name, refused=refused.message)
    latency = figures.latency
    told = f"p50 {latency.p50:.1f} p99 {latency.p99:.1f} ms" if latency else "no latency"
    say(f"  {told}; {figures.drained:,.0f} events/s; {figures.missing} missing")
    return figures


def tables(measured: Sequence[Figures], length: Length) -> str:
    """The figures as Markdown, beside PyFlink's if it was measured."""
    reference = next((each for each in measured if each.engine == FLINK), None)
    head = [
        *("window", "mode", "p50 ms", "p99", "max", "p50 of PyFlink's"),
        *("burst, events/s", "of PyFlink's"),
    ]
    rows = [
        [NAMES[each.kind], report.MODES.get(each.engine, each.engine), *_cells(each, reference)]
        for each in measured
    ]
    missing = sum(each.missing for each in measured)
    lines = [
        f"At {length.rate:,} events/s, and a burst of {length.burst:,}:",
        report.table(head, rows),
        f"{missing:,} events missing.",
    ]
    refused = [each for each in measured if each.refused]
    if refused:
        lines += [
            "What does not run so:",
            "\n".join(
                f"- {NAMES[each.kind]}, {report.MODES[each.engine]}: {each.refused}"
                for each in refused
            ),
        ]
    return "\n\n".join(lines)


def _cells(each: Figures, reference: Figures | None) -> list[str]:
    if each.latency is None or not each.drained:
        return ["–"] * 6
    latency = each.latency
    shown = [f"{value:,.1f}" for value in (latency.p50, latency.p99, latency.max)]
    drained = f"{each.drained:,.0f}"
    if reference is None or reference.latency is None:
        return [*shown, "–", drained, "–"]
    slower = latency.p50 / reference.latency.p50
    return [*shown, _times(slower), drained, _times(each.drained / reference.drained)]


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}×" if ratio >= 10 else f"{ratio:.2g}×"


def _now() -> int:
    return time.time_ns() // 1_000_000


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="short and rough; writes nothing")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--no-flink", action="store_true", help="without the reference")
    parser.add_argument("--write", action="store_true", help="write the figures of a quick run too")
    options = parser.parse_args()
    length = QUICK if options.quick else FULL
    load = os.getloadavg()[0]
    if load > (os.cpu_count() or 1) / 2:
        say(f"! load average {load:.1f}: this machine is busy, figures are too high")
    flink = None if options.no_flink else prepare(say)
    wanted = [(kind, mode) for kind in options.kinds for mode in options.modes]
    with (
        tempfile.TemporaryDirectory(prefix="millstream-bench-") as home,
        Broker(Path(home)) as kafka,
    ):
        measured = run(LogSettings(bootstrap=kafka.bootstrap), length, wanted, flink)
    text = tables(measured, length)
    how = f"Latencies over {length.measure:g} s; load average before the run {load:.1f}."
    say(f"\n{report.machine()} {how}\n\n{text}")
    if options.write or not options.quick:
        report.replace(DOCUMENT, BEGIN, END, f"{report.machine()} {how}\n\n{text}")
        say(f"\nwrote {DOCUMENT.name}")


if __name__ == "__main__":
    main()
