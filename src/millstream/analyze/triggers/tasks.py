"""What keepers are to do for the views of an app."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta

from millstream.analyze.plan import PanePlan, ViewPlan
from millstream.analyze.triggers.ledger import Books
from millstream.analyze.triggers.output import Showing
from millstream.analyze.triggers.output_writer import Task
from millstream.analyze.triggers.work import Topics
from millstream.log.topic_names import edition_of, ledger_topic, panes_topic
from millstream.pipeline.app import App
from millstream.syntax.duration import milliseconds

_MARGIN = timedelta(days=1)  # retention deletes whole segments, some time after they are due


def tasks(app: App, views: Iterable[ViewPlan], *, enters: bool = True) -> Iterator[Task]:
    """One for each view whose rows are shown otherwise than they come, or entered.

    Without `enters` there are no ledgers: of views that are not served yet.
    """
    for plan in views:
        if plan.panes is not None and (enters or not plan.panes.is_direct):
            yield _task(app, plan, plan.panes, enters)


def _task(app: App, plan: ViewPlan, panes: PanePlan, enters: bool) -> Task:
    showing = Showing(
        app.views[plan.name].trigger,
        panes.accumulation,
        panes.additive,
        plan.window if plan.is_timed else None,
        plan.columns,
    )
    return Task(
        plan.name,
        topics_of(app.name, plan),
        None if panes.is_direct else showing,
        books_of(plan) if enters else None,
        milliseconds(_kept(app, plan.name)),
    )


def topics_of(app: str, plan: ViewPlan) -> Topics:
    """Where the rows of a view with panes are read from, shown, entered and remembered."""
    is_direct = plan.panes is not None and plan.panes.is_direct
    book = panes_topic(app, plan.name)
    own = book if is_direct else panes_topic(app, plan.name, edition_of(plan.topic))
    return Topics(plan.written, plan.topic, ledger_topic(app, plan.name), own, book)


def books_of(plan: ViewPlan) -> Books | None:
    """What the view's ledger is about; None if it has none."""
    if plan.panes is None or not plan.panes.ledger:
        return None
    # Revisions of two editions are not compared either: one of them may be wrong.
    edition = edition_of(plan.topic)
    generation = f"{plan.generation}.{edition}" if edition else plan.generation
    return Books(plan.name, generation, plan.panes.ledger)


def _kept(app: App, name: str) -> timedelta:
    """How long the events can be had that a view is made of."""
    retentions = [
        app.streams[each].retention if each in app.streams else _kept(app, each)
        for each in app.views[name].inputs
    ]
    return max(retentions) + _MARGIN
