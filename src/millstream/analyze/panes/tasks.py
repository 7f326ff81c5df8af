"""What keepers are to do for the views of an app."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta

from millstream.analyze.panes.book import Books
from millstream.analyze.panes.keeper import Task
from millstream.analyze.panes.panes import Showing
from millstream.analyze.panes.work import Topics
from millstream.analyze.plan import PanePlan, ViewPlan
from millstream.app import App
from millstream.log.topics import edition_of, ledger_topic, panes_topic

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
    edition, book = edition_of(plan.topic), panes_topic(app.name, plan.name)
    own = book if panes.is_direct else panes_topic(app.name, plan.name, edition)
    # Revisions of two editions are not compared either: one of them may be wrong.
    generation = f"{plan.generation}.{edition}" if edition else plan.generation
    return Task(
        plan.name,
        Topics(plan.written, plan.topic, ledger_topic(app.name, plan.name), own, book),
        None if panes.is_direct else showing,
        Books(plan.name, generation, panes.ledger) if panes.ledger and enters else None,
        _kept(app, plan.name) // timedelta(milliseconds=1),
    )


def _kept(app: App, name: str) -> timedelta:
    """How long the events can be had that a view is made of."""
    retentions = [
        app.streams[each].retention if each in app.streams else _kept(app, each)
        for each in app.views[name].inputs
    ]
    return max(retentions) + _MARGIN
