"""What keepers are to do for the views of an app."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta

from millstream.analyze.plan import OutputPlan, ViewPlan
from millstream.analyze.triggers.ledger import LedgerSpec
from millstream.analyze.triggers.output_writer import OutputTask
from millstream.analyze.triggers.processor import OutputTopics
from millstream.analyze.triggers.shown_rows import OutputSpec
from millstream.log.topic_names import edition_of, ledger_topic, output_state_topic
from millstream.pipeline.app import App
from millstream.syntax.duration import milliseconds

_MARGIN = timedelta(days=1)  # retention deletes whole segments, some time after they are due


def tasks(app: App, views: Iterable[ViewPlan], *, enters: bool = True) -> Iterator[OutputTask]:
    """One for each view whose rows are shown otherwise than they come, or entered.

    Without `enters` there are no ledgers: of views that are not served yet.
    """
    for plan in views:
        if plan.output is not None and (enters or not plan.output.is_direct):
            yield _task(app, plan, plan.output, enters)


def _task(app: App, plan: ViewPlan, output: OutputPlan, enters: bool) -> OutputTask:
    showing = OutputSpec(
        app.views[plan.name].trigger,
        output.accumulation,
        output.additive,
        plan.window if plan.has_watermark else None,
        plan.columns,
    )
    return OutputTask(
        plan.name,
        streamed_topics(app.name, plan),
        None if output.is_direct else showing,
        books_of(plan) if enters else None,
        milliseconds(_kept(app, plan.name)),
    )


def streamed_topics(app: str, plan: ViewPlan) -> OutputTopics:
    """Where the rows of a view with panes are read from, shown, entered and remembered."""
    is_direct = plan.output is not None and plan.output.is_direct
    book = output_state_topic(app, plan.name)
    own = book if is_direct else output_state_topic(app, plan.name, edition_of(plan.topic))
    return OutputTopics(plan.query_topic, plan.topic, ledger_topic(app, plan.name), own, book)


def books_of(plan: ViewPlan) -> LedgerSpec | None:
    """What the view's ledger is about; None if it has none."""
    if plan.output is None or not plan.output.ledger:
        return None
    # Revisions of two editions are not compared either: one of them may be wrong.
    edition = edition_of(plan.topic)
    generation = f"{plan.generation}.{edition}" if edition else plan.generation
    return LedgerSpec(plan.name, generation, plan.output.ledger)


def _kept(app: App, name: str) -> timedelta:
    """How long the events can be had that a view is made of."""
    retentions = [
        app.streams[each].retention if each in app.streams else _kept(app, each)
        for each in app.views[name].inputs
    ]
    return max(retentions) + _MARGIN
