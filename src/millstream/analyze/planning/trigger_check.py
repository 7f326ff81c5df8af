"""Checks that a view's query fits its trigger, accumulation and ledger."""

from __future__ import annotations

from millstream.analyze.lineage.lineage import TracedQuery
from millstream.analyze.plan import OutputPlan
from millstream.analyze.planning.build import mistake
from millstream.analyze.spark.catalyst import spelled
from millstream.errors import QueryError
from millstream.expression.condition import compile_condition
from millstream.pipeline.model import View
from millstream.pipeline.trigger import AtWatermark, When
from millstream.syntax.names import suggest
from millstream.values.view_description import ViewColumn


def plan_output(
    view: View,
    traced: TracedQuery,
    columns: tuple[ViewColumn, ...],
    window: str | None,
) -> OutputPlan | None:
    """How the view's rows are shown and entered in its ledger; None if it has no such option.

    PipelineError, with the user's line, if its query does not fit these options.
    """
    if not view.has_output_options and not view.ledger:
        return None
    if traced.lineage != "revision":
        raise mistake(
            view,
            f"has {_first_option(view)}, but does not group: none of its rows replaces another",
            "group by its key, or leave that out",
        )
    needs_window = "trigger='at the watermark'" if view.trigger == AtWatermark() else ""
    if view.ledger and not needs_window:
        needs_window = "a ledger"
    if needs_window and window is None:
        raise mistake(
            view,
            f"has {needs_window}, but no time window, so that its rows are never final",
            "group by window(…) too, and have it in the result and in the key",
        )
    if needs_window and not traced.has_watermark:
        raise mistake(
            view,
            f"has {needs_window}, but its window is by a time without a watermark, so that its"
            " rows are never final",
            "group by a window of the stream's event time, or of _received_at",
        )
    if isinstance(view.trigger, When):
        _check_condition(view, view.trigger, columns)
    additive = tuple(name for name, kind in traced.column_kinds.items() if kind == "additive")
    if view.accumulation == "discard":
        others = [name for name, kind in traced.column_kinds.items() if kind == "other"]
        _check_additive(view, "accumulation='discard'", others)
    known = {name.lower() for name in traced.columns}
    if unknown := [name for name in view.ledger if name.lower() not in known]:
        problem = f"has {unknown[0]!r} in its ledger, which is not in its result"
        raise mistake(view, problem, suggest(unknown[0], traced.columns))
    ledger = spelled(view.ledger, traced.columns)
    _check_additive(view, "a ledger", [name for name in ledger if name not in additive])
    return OutputPlan(
        str(view.trigger), view.accumulation, additive, ledger, not view.has_output_options
    )


def _first_option(view: View) -> str:
    if view.accumulation != "accumulate":
        return f"accumulation={view.accumulation!r}"
    return f"trigger={str(view.trigger)!r}" if view.has_output_options else "a ledger"


def _check_condition(view: View, trigger: When, columns: tuple[ViewColumn, ...]) -> None:
    try:
        compile_condition(trigger.condition, columns, what="the condition")
    except QueryError as error:
        problem = f"has trigger={str(trigger)[:100]!r}: {error.message}"
        raise mistake(view, problem, error.remedy) from None


def _check_additive(view: View, what: str, others: list[str]) -> None:
    if others:
        raise mistake(
            view,
            f"has {what}, but {others[0]!r} is neither a count nor a sum: "
            "differences of such a value do not add up",
            "take it out of the result, or select the counts and sums that it is computed from",
        )
