"""Estimates counts, sums and averages from a sample of the events, with error bounds.

An event's weight w is 1 / the share of events that was kept. A count is the sum of the weights, a
sum is the sum of the weighted values (the Horvitz-Thompson estimator), and an average is their
ratio. Events are kept independently of each other. So the sum of w(w-1)x² over the kept events is
an unbiased estimate of a sum's variance; for a ratio R, x-R takes the place of x. The error of each
result is half the width of its 95 % interval; 0 means exact.

If few events were kept, that sum is usually too small, and with it the interval. So the largest
event is added twice more. (For a count, Wilson's interval does the same.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from millstream.analyze.lineage.grouping import columns_above
from millstream.analyze.spark.catalyst import (
    Attribute,
    Catalyst,
    Expression,
    LogicalPlan,
    identity,
    items,
    name_of,
    references,
    unwrapped,
)
from millstream.analyze.spark.realtime import UnsupportedQuery

_NORMAL_95 = 1.959964  # standard deviations, to either side
_EXTRA = 2.0  # events that are added to the sum for the variance
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_REMEDY = "leave shed out, or take a count, a sum or an average in its place"


class NotEstimable(UnsupportedQuery):
    """Why the result of a query cannot be estimated from a sample."""

    def __init__(self, why: str, remedy: str = "leave shed out") -> None:
        super().__init__(why)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Estimates:
    """The columns of an Aggregate over weighted events."""

    expressions: list[Expression]  # with the ids of the user's expressions
    errors: dict[int, Expression]  # by the id of the expression that they belong to


def estimate(
    catalyst: Catalyst,
    aggregate: LogicalPlan,
    child: LogicalPlan,
    weight: Attribute,
    spread: Attribute | None,
) -> Estimates:
    """Estimates of the Aggregate's columns over `child`; NotEstimable names a column without one.

    `spread`: how many rows were made of an event, at most. An event's rows are kept together or
    not at all. So if several are in one group, their errors add up: (Σx)² is at most n Σx².
    """
    w = catalyst.column(weight)
    excess = w * (w - 1.0)
    if spread is not None:
        excess *= catalyst.column(spread)
    made: dict[str, Column] = {}
    expressions = items(aggregate.aggregateExpressions())
    places = [
        at for at, each in enumerate(expressions) if catalyst.contains(each, "AGGREGATE_EXPRESSION")
    ]
    for at in places:
        value, variance = _estimate(catalyst, _function(expressions[at]), w, excess)
        variance = F.greatest(F.coalesce(variance, F.lit(0.0)), F.lit(0.0))
        made[f"_value{at}"] = value.cast(str(expressions[at].dataType().sql()))
        made[f"_error{at}"] = F.sqrt(variance) * _NORMAL_95
    errors: dict[int, Expression] = {}
    if made:
        found = dict(zip(made, catalyst.aggregates(child, **made), strict=True))
        for at in places:
            errors[identity(expressions[at])] = found[f"_error{at}"]
            estimated = found[f"_value{at}"].child()
            expressions[at] = expressions[at].withNewChildren(catalyst.seq([estimated]))
    return Estimates(expressions, errors)


def _function(alias: Expression) -> Expression:
    """The aggregate function of a column; NotEstimable if it has none, or another kind."""
    inner, name = unwrapped(alias), str(alias.name())
    if name_of(inner) != "AggregateExpression":
        raise _combined(name)
    function = inner.aggregateFunction()
    kind, called = name_of(function), str(function.prettyName())
    if inner.isDistinct():
        raise NotEstimable(
            f"{name!r} is {called}(DISTINCT …), which a sample cannot estimate", _REMEDY
        )
    if kind not in ("Count", "CountIf", "Sum", "Average"):
        raise NotEstimable(f"{name!r} is {called}(…), which a sample cannot estimate", _REMEDY)
    for of in (inner.dataType(), alias.dataType()):
        if not str(of.simpleString()).startswith(_NUMBERS):
            why = f"{name!r} is of type {of.simpleString()}, for which there is no error bound"
            raise NotEstimable(why, _REMEDY)
    return inner


def _combined(name: str) -> NotEstimable:
    return NotEstimable(
        f"{name!r} is computed from counts or sums, and has no known error bound",
        "select these by themselves, and let the reader compute it; or leave shed out",
    )


def _estimate(
    catalyst: Catalyst, function: Expression, w: Column, excess: Column
) -> tuple[Column, Column]:
    """The estimate of an aggregate function, and its variance; `excess` is w(w-1)."""
    arguments = [catalyst.column(each) for each in items(function.aggregateFunction().children())]
    counts = F.lit(True)
    if function.filter().isDefined():
        counts = F.coalesce(catalyst.column(function.filter().get()), F.lit(False))
    kind = name_of(function.aggregateFunction())
    if kind == "CountIf":
        counts &= F.coalesce(arguments[0], F.lit(False))
    else:
        for argument in arguments:
            counts &= argument.isNotNull()

    def total(value: Column) -> Column:
        return F.sum(F.when(counts, value))

    def total_with_extra(value: Column) -> Column:
        return total(value) + F.max(F.when(counts, value)) * _EXTRA

    if kind in ("Count", "CountIf"):
        counted = F.round(F.coalesce(total(w), F.lit(0.0))).cast("bigint")
        return counted, total_with_extra(excess)
    x = arguments[0].cast("double")
    # An exact result is Spark's own, in its own type.
    is_exact = F.max(F.when(counts, w)) <= 1.0
    exact = catalyst.column(function)
    if kind == "Sum":
        sum_of = total(w * x)
        is_integer = str(function.dataType().simpleString()) == "bigint"
        rounded = F.round(sum_of) if is_integer else sum_of
        value = F.when(is_exact, exact).otherwise(rounded.cast(str(function.dataType().sql())))
        return value, total_with_extra(excess * x * x)
    ratio = total(w * x) / total(w)
    about = total(excess * x * x) - 2.0 * ratio * total(excess * x) + ratio * ratio * total(excess)
    value = F.when(is_exact, exact).otherwise(ratio.cast(str(function.dataType().sql())))
    # The largest distance from the ratio is not known before the end: the mean is added instead.
    sampled = F.greatest(F.count(F.when(counts & (w > 1.0), 1)), F.lit(1))
    return value, about * (1.0 + _EXTRA / sampled) / (total(w) * total(w))


def errors_shown(
    plan: LogicalPlan, aggregate: LogicalPlan, errors: Mapping[int, Attribute]
) -> dict[str, Attribute]:
    """The errors by the result's column names; NotEstimable if a column has none."""
    found = columns_above(plan, aggregate, {each: each for each in errors}, _origin)
    output = [(str(each.name()), found.get(identity(each))) for each in items(plan.output())]
    return {name: errors[of] for name, of in output if of is not None}


def _origin(expression: Expression, below: dict[int, int]) -> int | None:
    """The id of the estimate that a column is; None if it depends on no estimate."""
    inner = expression.child() if name_of(expression) == "Alias" else expression
    if name_of(inner) == "AttributeReference":
        return below.get(identity(inner))
    if references(inner) & below.keys():
        raise _combined(str(expression.name()))
    return None
