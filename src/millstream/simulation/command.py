"""The command line of simulators."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any

from millstream.errors import MillstreamError
from millstream.simulation.faults import (
    USUAL_FAULTS,
    EventGenerator,
    Faults,
    SentEvent,
    disorder,
    draw,
)
from millstream.simulation.rules import Predicted, predict
from millstream.simulation.sender import EventSender


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulator sends to a stream, and the correct results."""

    stream: str
    time: str  # the stream's event_time
    lateness: int  # milliseconds, as the pipeline has it
    window: int  # milliseconds; the longest one of its views
    generate: EventGenerator
    truth: Callable[[Sequence[Predicted]], dict[str, Any]]
    faults: Faults = USUAL_FAULTS  # default of the command line
    share: float = 1.0  # of the events that the command line asks for

    def sendings(
        self, *, seed: int, count: int, start: int, span: int, faults: Faults | None = None
    ) -> list[SentEvent]:
        """All events in the order of sending: the same for the same arguments."""
        return disorder(
            draw(self.generate, seed=seed, count=count, start=start, span=span),
            faults or self.faults,
            seed=seed,
            time=self.time,
            lateness=self.lateness,
            window=self.window,
        )


@dataclass(frozen=True, slots=True)
class Pace:
    """The relation of simulated time (from `start`, for `span`) to real time."""

    start: int
    span: int
    speed: float
    began: float  # seconds since the epoch

    @classmethod
    def of(cls, options: argparse.Namespace) -> Pace:
        now, seconds = time.time(), options.events / options.rate
        # Simulated time reaches real time at the end, and never overtakes it.
        behind = int((now - seconds * (options.speed - 1)) * 1000)
        start = behind if options.start is None else options.start
        return cls(start, max(1, int(seconds * options.speed * 1000)), options.speed, now)

    def when(self, due: int) -> float:
        return self.began + (due - self.start) / self.speed / 1000


def main(simulations: Simulation | Sequence[Simulation], description: str) -> None:
    """Run a simulator from the command line: of one stream, or of several at the same time.

    The truth is that of the stream; with several streams, an object with the truth of each.
    """
    several = [simulations] if isinstance(simulations, Simulation) else list(simulations)
    parser = _parser(several[0], description)
    options = parser.parse_args()
    faults = Faults(**{field.name: getattr(options, field.name) for field in fields(Faults)})
    if sum(getattr(faults, field.name) for field in fields(Faults)) > 1:
        parser.error("the faults are shares of all events; together at most 1")
    pace = Pace.of(options)
    if pace.start + pace.span > pace.began * 1000 + pace.span / pace.speed + 1:
        parser.error("--start: with so many events, some would happen after they are sent")
    sendings = {
        each.stream: each.sendings(
            seed=options.seed,
            count=max(1, round(options.events * each.share)),
            start=pace.start,
            span=pace.span,
            faults=faults,
        )
        for each in several
    }
    try:
        if options.truth:
            truths = {
                each.stream: each.truth(list(predict(sendings[each.stream]))) for each in several
            }
            truth = truths if len(several) > 1 else truths[several[0].stream]
            options.truth.write_text(json.dumps(truth, indent=1, ensure_ascii=False) + "\n")
        _send(several, sendings, pace, options)
    except MillstreamError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: cannot write the truth: {error}; give another --truth")
    except KeyboardInterrupt:
        sys.exit(130)


def _send(
    simulations: Sequence[Simulation],
    sendings: Mapping[str, Sequence[SentEvent]],
    pace: Pace,
    options: argparse.Namespace,
) -> None:
    for each in simulations:
        print(
            f"sending {len(sendings[each.stream]):,} events to"
            f" {options.url}/v1/streams/{each.stream}:"
            f" {options.rate * each.share:g} a second, seed {options.seed}",
            flush=True,
        )
    merged = [(stream, each) for stream, several in sendings.items() for each in several]
    merged.sort(
        key=lambda pair: (pair[1].straggler, pair[1].due)
    )  # stable: streams keep their order
    stragglers = sum(each.straggler for _, each in merged)
    flowing = len(merged) - stragglers
    with ExitStack() as stack:
        posts = {name: stack.enter_context(EventSender(options.url, name)) for name in sendings}
        _post(posts, merged[:flowing], pace.when)
        if stragglers:
            print(f"{stragglers:,} stragglers in {options.pause:g} s", flush=True)
            time.sleep(options.pause)
            _post(posts, merged[flowing:], None)
    print("all sent", flush=True)


def _post(
    posts: Mapping[str, EventSender],
    merged: Iterable[tuple[str, SentEvent]],
    when: Callable[[int], float] | None,
) -> None:
    for stream, run in groupby(merged, key=lambda pair: pair[0]):
        posts[stream].send([each for _, each in run], when=when)


def _parser(simulation: Simulation, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8400", help="the collector")
    parser.add_argument("--seed", type=int, default=1, help="another seed gives other events (1)")
    parser.add_argument("--events", type=_count, default=3_000, help="number of events (3000)")
    parser.add_argument("--rate", type=_positive, default=50.0, help="events per second (50)")
    parser.add_argument(
        "--speed", type=_at_least_1, default=30.0, help="speed of simulated time (30)"
    )
    parser.add_argument(
        "--start",
        type=int,
        help="time of the first event, in ms since 1970 (by default, the end is now)",
    )
    parser.add_argument(
        "--pause", type=float, default=5.0, help="seconds before the stragglers are sent (5)"
    )
    parser.add_argument(
        "--truth", type=Path, metavar="FILE", help="write the correct results to FILE"
    )
    for field in fields(Faults):
        default = getattr(simulation.faults, field.name)
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=_share,
            default=default,
            help=f"share of the events ({default:g})",
        )
    return parser


def _number(text: str, fits: Callable[[float], bool], wanted: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not fits(value):
        raise argparse.ArgumentTypeError(f"{text!r} does not fit; write {wanted}")
    return value


def _share(text: str) -> float:
    return _number(text, lambda value: 0 <= value <= 1, "a number from 0 to 1")


def _positive(text: str) -> float:
    return _number(text, lambda value: 0 < value < float("inf"), "a number above 0")


def _at_least_1(text: str) -> float:
    return _number(text, lambda value: 1 <= value < float("inf"), "a number of at least 1")


def _count(text: str) -> int:
    return int(_number(text, lambda value: value >= 1 and value % 1 == 0, "a whole number"))
