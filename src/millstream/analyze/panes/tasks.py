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
from millstream.log.topics import ledger_topic, panes_topic

_MARGIN = timedelta(days=1)  # retention deletes whole segments, some time after they are due


def tasks(app: App, views: Iterable[ViewPlan]) -> Iterator[Task]:
    """One for each view whose rows are shown otherwise than they come, or entered."""
    for plan in views:
        if plan.panes is not None:
            yield _task(app, plan, plan.panes)


def _task(app: App, plan: ViewPlan, panes: PanePlan) -> Task:
    showing = Showing(
        app.views[plan.name].trigger,
        panes.accumulation,
        panes.additive,
        plan.window,
        plan.columns,
    )
    names = (ledger_topic(app.name, plan.name), panes_topic(app.name, plan.name))
    return Task(
        plan.name,
        Topics(plan.written, plan.topic, *names),
        None if panes.is_direct else showing,
        Books(plan.name, plan.generation, panes.ledger) if panes.ledger else None,
        _kept(app, plan.name) // timedelta(milliseconds=1),
    )


def _kept(app: App, name: str) -> timedelta:
    """How long the events can be had that a view is made of."""
    retentions = [
        app.streams[each].retention if each in app.streams else _kept(app, each)
        for each in app.views[name].inputs
    ]
    return max(retentions) + _MARGIN
