"""Compares each view of the pipeline with the one that ran before.

An edition is one computation of a view, with its own topic and checkpoint. A rebuild makes the
next edition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from millstream.analyze.plan import ViewPlan
from millstream.errors import LogError, QueryError
from millstream.log.consumer import bounds, read_range
from millstream.log.settings import LogSettings
from millstream.log.topic_names import view_topic, views_topic
from millstream.log.topics import known_topics
from millstream.syntax.names import suggest
from millstream.values.view_description import ViewDescription

Kind = Literal["new", "unchanged", "compatible", "incompatible"]


@dataclass(frozen=True, slots=True)
class Deployment:
    """What happens to a view when the pipeline starts."""

    view: str
    kind: Kind
    text: str  # what differs, and what is done


def describe_views(app: str, log: LogSettings) -> dict[str, ViewDescription]:
    """The description of each view that `analyze` has run, by name."""
    topic = views_topic(app)
    if topic not in known_topics(log):
        return {}
    found: dict[str, ViewDescription] = {}
    for partition, (low, high) in bounds(log, topic).items():
        for record in read_range(log, topic, partition, low, high):
            name = (record.key or b"").decode(errors="replace")
            found.pop(name, None)
            try:
                found[name] = msgspec.json.decode(record.value or b"", type=ViewDescription)
            except msgspec.MsgspecError:
                continue
    return found


def topic_of(app: str, view: ViewDescription) -> str:
    """The topic that holds the view's rows."""
    return view.topic or view_topic(app, view.name)


def query_topic_of(app: str, view: ViewDescription, topic: str = "") -> str:
    """The topic that the view's query writes to; for the edition in `topic`, if that is given."""
    topic = topic or topic_of(app, view)
    is_direct = (view.trigger, view.accumulation) == ("every change", "accumulate")
    return topic if is_direct else topic.replace(".view.", ".changes.", 1)


def compare(plan: ViewPlan, before: ViewDescription | None) -> Deployment:
    """What happens to a view: it goes on from its state if its generation is the same."""
    if before is None:
        return Deployment(plan.name, "new", "computed from the log's beginning")
    if before.generation != plan.generation:
        return Deployment(plan.name, "incompatible", f"{_difference(plan, before)}; rebuilt")
    if differing := _differing(plan, before, "keep_ms", "description"):
        return Deployment(plan.name, "compatible", f"other {differing}; goes on")
    return Deployment(plan.name, "unchanged", "goes on where it left off")


def _difference(plan: ViewPlan, before: ViewDescription) -> str:
    differing = _differing(plan.describe(), before, "key", "columns", "inputs", "mode")
    return f"other {differing}" if differing else "another query"


def _differing(now: ViewPlan | ViewDescription, before: ViewDescription, *names: str) -> str:
    differing = [name for name in names if getattr(now, name) != getattr(before, name)]
    return " and ".join(name.removesuffix("_ms") for name in differing)


def known_view(described: dict[str, ViewDescription], name: str) -> ViewDescription:
    """The view of that name; QueryError, with a suggestion, if none has run."""
    if name not in described:
        raise QueryError(f"no view {name!r} has run", remedy=suggest(name, described))
    return described[name]


def check_generation(running: ViewDescription, mine: str) -> None:
    """LogError unless `analyze` runs the query that the pipeline has."""
    if running.generation != mine:
        raise LogError(
            f"view {running.name} runs with another query than the pipeline's: one was changed",
            remedy="restart analyze, or give the pipeline and settings that run",
        )
