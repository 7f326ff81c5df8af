"""Simulated events with faults, drawn from a seed, whose correct results are known.

For tests of a pipeline on a whole system:

    drawn = draw(generate, seed=1, count=1_000, start=..., span=...)   events, in order
    sendings = disorder(drawn, Faults(late=0.05), seed=1, ...)         the same as they are sent
    predicted = list(predict(sendings))                                the outcome of each
    groups = grouped(predicted, Tumbling(60_000), lateness, by)        the events of each window
    taken = joined(predicted, lateness)                                the events that joins use
    EventSender(url, "clicks").send(sendings)                          over HTTP, in order

It models one collector and one sender, by the rules of docs/explanation/time.md: so it is known in
advance which event is late for which window. Times are milliseconds since the epoch.
"""

from __future__ import annotations

from millstream.simulation.command import Simulation, main
from millstream.simulation.faults import FUTURE, EventGenerator, Faults, SentEvent, disorder, draw
from millstream.simulation.rules import Predicted, Row, joined, late_records, predict, with_outcome
from millstream.simulation.sender import EventSender
from millstream.simulation.windows import (
    Sliding,
    Tumbling,
    Window,
    grouped,
    iso_time,
    state_of,
    window_json,
)

__all__ = [
    "FUTURE",
    "EventGenerator",
    "EventSender",
    "Faults",
    "Predicted",
    "Row",
    "SentEvent",
    "Simulation",
    "Sliding",
    "Tumbling",
    "Window",
    "disorder",
    "draw",
    "grouped",
    "iso_time",
    "joined",
    "late_records",
    "main",
    "predict",
    "state_of",
    "window_json",
    "with_outcome",
]
