"""For tests of a pipeline on a whole system: events with faults, drawn from a seed, whose true
answer is known.

    drawn = draw(world, seed=1, count=1_000, start=..., span=...)   what happens, in order
    sendings = disorder(drawn, Faults(late=0.05), seed=1, ...)      what is sent, in order
    judged = list(judge(sendings))                                  what the collector makes of each
    groups = grouped(judged, Tumbling(60_000), lateness, by)        what is in each window's row
    taken = joined(judged, lateness)                                what joins of streams take
    Post(url, "clicks").send(sendings)                              over HTTP, one after another

It models one collector that hears from one sender, by the rules of docs/explanation/time.md: then
which event is late for which window is known before it is sent. Times are milliseconds since the
epoch.
"""

from __future__ import annotations

from millstream.simulation.command import Simulation, main
from millstream.simulation.faults import FUTURE, Faults, Sending, World, disorder, draw
from millstream.simulation.post import Post
from millstream.simulation.rules import Judged, Row, joined, judge, late_entries, of_kind
from millstream.simulation.windows import Sliding, Tumbling, Window, grouped, state_of, written

__all__ = [
    "FUTURE",
    "Faults",
    "Judged",
    "Post",
    "Row",
    "Sending",
    "Simulation",
    "Sliding",
    "Tumbling",
    "Window",
    "World",
    "disorder",
    "draw",
    "grouped",
    "joined",
    "judge",
    "late_entries",
    "main",
    "of_kind",
    "state_of",
    "written",
]
