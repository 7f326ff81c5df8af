"""What each view was when it last ran, and what becomes of it now that the pipeline may differ."""

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
    """A view against what ran before."""

    view: str
    kind: Kind
    words: str  # what differs, or what is done about it


def describe_views(app: str, log: LogSettings) -> dict[str, ViewDescription]:
    """What `analyze` has told of each view; nothing if it never ran."""
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


def written_to(app: str, view: ViewDescription, topic: str = "") -> str:
    """The topic that the view's query writes to; of its edition in `topic`, if that is given."""
    topic = topic or topic_of(app, view)
    is_shown_otherwise = (view.trigger, view.accumulation) != ("every change", "accumulate")
    return topic.replace(".view.", ".changes.", 1) if is_shown_otherwise else topic


def compare(plan: ViewPlan, before: ViewDescription | None) -> Deployment:
    """What becomes of a view: its state is of use as long as its generation is the same."""
    if before is None:
        return Deployment(plan.name, "new", "computed from the log's beginning")
    if before.generation != plan.generation:
        return Deployment(plan.name, "incompatible", f"{_what_differs(plan, before)}; rebuilt")
    differing = [
        words
        for words, one, other in (
            ("keep", plan.keep_ms, before.keep_ms),
            ("description", plan.description, before.description),
        )
        if one != other
    ]
    if differing:
        return Deployment(plan.name, "compatible", f"other {' and '.join(differing)}; goes on")
    return Deployment(plan.name, "unchanged", "goes on where it left off")


def _what_differs(plan: ViewPlan, before: ViewDescription) -> str:
    now = plan.describe()
    differing = [
        words
        for words, one, other in (
            ("key", now.key, before.key),
            ("columns", now.columns, before.columns),
            ("inputs", now.inputs, before.inputs),
            ("mode", now.mode, before.mode),
        )
        if one != other
    ]
    return f"other {' and '.join(differing)}" if differing else "another query"


def known_view(described: dict[str, ViewDescription], name: str) -> ViewDescription:
    """The view of that name that has run; QueryError with the one that may be meant."""
    if name not in described:
        raise QueryError(f"no view {name!r} has run", remedy=suggest(name, described))
    return described[name]


def check_generation(running: ViewDescription, mine: str) -> None:
    """LogError unless `analyze` runs the view with the plan that the pipeline has."""
    if running.generation != mine:
        raise LogError(
            f"view {running.name} runs with another query than the pipeline's: one was changed",
            remedy="restart analyze, or give the pipeline and settings that run",
        )
