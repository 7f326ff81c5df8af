"""What output writers do for the views of an app."""

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


def output_tasks(
    app: App, views: Iterable[ViewPlan], *, with_ledger: bool = True
) -> Iterator[OutputTask]:
    """One task for each view that has a trigger, an accumulation or a ledger.

    Views that are not served yet have no ledger: then `with_ledger` is False.
    """
    for plan in views:
        if plan.output is not None and (with_ledger or not plan.output.is_direct):
            yield _task(app, plan, plan.output, with_ledger)


def _task(app: App, plan: ViewPlan, output: OutputPlan, with_ledger: bool) -> OutputTask:
    spec = OutputSpec(
        app.views[plan.name].trigger,
        output.accumulation,
        output.additive,
        plan.window if plan.has_watermark else None,
        plan.columns,
    )
    return OutputTask(
        plan.name,
        output_topics(app.name, plan),
        None if output.is_direct else spec,
        ledger_spec(plan) if with_ledger else None,
        milliseconds(_retention(app, plan.name)),
    )


def output_topics(app: str, plan: ViewPlan) -> OutputTopics:
    """The topics of a view with a trigger, an accumulation or a ledger."""
    is_direct = plan.output is not None and plan.output.is_direct
    ledger_state = output_state_topic(app, plan.name)
    state = output_state_topic(app, plan.name, 0 if is_direct else edition_of(plan.topic))
    return OutputTopics(
        plan.query_topic, plan.topic, ledger_topic(app, plan.name), state, ledger_state
    )


def ledger_spec(plan: ViewPlan) -> LedgerSpec | None:
    """The view's ledger; None if it has none."""
    if plan.output is None or not plan.output.ledger:
        return None
    # Revisions of two editions are not compared either: one of them may be wrong.
    edition = edition_of(plan.topic)
    generation = f"{plan.generation}.{edition}" if edition else plan.generation
    return LedgerSpec(plan.name, generation, plan.output.ledger)


def _retention(app: App, name: str) -> timedelta:
    """How long the events of a view are kept."""
    retentions = [
        app.streams[each].retention if each in app.streams else _retention(app, each)
        for each in app.views[name].inputs
    ]
    return max(retentions) + _MARGIN
