"""A user's counts, sums and averages as estimates from a sample, and how far off they may be.

Each event has a weight: how many it stands for, 1 over the share that it is of. A count is the sum
of the weights, a sum that of the weighed values (Horvitz and Thompson), an average the ratio of the
two. Events are kept or left out each by itself, so the variance of a sum is estimated without bias
by the sum of w(w-1)x² over those that were kept, and that of a ratio R by the same of x-R. Beside
each result stands half the width of its 95 % interval; 0 says that it is exact.

Where few events were kept, that sum is mostly too small, and so would the interval be: it is made
of two events more than there are, the largest. (For a count that is what Wilson's interval does.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from millstream.analyze.spark.catalyst import (
    Attribute,
    Catalyst,
    Expression,
    LogicalPlan,
    identity,
    items,
    name_of,
    references,
)
from millstream.analyze.spark.realtime import Refused

_NORMAL_95 = 1.959964  # of the standard deviation, to either side
_MORE = 2.0  # events by which the sum for the variance is longer
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_REMEDY = "leave shed out, or take a count, a sum or an average in its place"


class Unweighable(Refused):
    """Why a query over a sample does not give what it would give over all events."""

    def __init__(self, why: str, remedy: str = "leave shed out") -> None:
        super().__init__(why)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Weighed:
    """What an Aggregate gives when its events have weights."""

    expressions: list[Expression]  # under the identities that the user's have
    errors: dict[int, Expression]  # by the identity of what they are the error of


@dataclass(frozen=True, slots=True)
class _Weights:
    weight: Column
    doubt: Column  # w(w-1)


@dataclass(frozen=True, slots=True)
class _Estimate:
    value: Column
    variance: Column


def weigh(
    catalyst: Catalyst,
    aggregate: LogicalPlan,
    child: LogicalPlan,
    weight: Attribute,
    spread: Attribute | None,
) -> Weighed:
    """The Aggregate's columns over `child`, weighed; Refused, with its name, if one can't be.

    `spread` is how many rows were made of an event, at most. All of an event's rows are kept or
    none is: if several are in one group, their errors add up. (Σx)² is at most n Σx².
    """
    w = catalyst.column(weight)
    doubt = w * (w - 1.0)
    if spread is not None:
        doubt *= catalyst.column(spread)
    weights, made = _Weights(w, doubt), dict[str, Column]()
    expressions = items(aggregate.aggregateExpressions())
    places = [at for at, each in enumerate(expressions) if _aggregates(catalyst, each)]
    for at in places:
        estimate = _estimate(catalyst, _function(expressions[at]), weights)
        variance = F.greatest(F.coalesce(estimate.variance, F.lit(0.0)), F.lit(0.0))
        made[f"_value{at}"] = estimate.value.cast(str(expressions[at].dataType().sql()))
        made[f"_error{at}"] = F.sqrt(variance) * _NORMAL_95
    errors: dict[int, Expression] = {}
    if made:
        found = dict(zip(made, catalyst.aggregates(child, **made), strict=True))
        for at in places:
            errors[identity(expressions[at])] = found[f"_error{at}"]
            value = found[f"_value{at}"].child()
            expressions[at] = expressions[at].withNewChildren(catalyst.seq([value]))
    return Weighed(expressions, errors)


def _aggregates(catalyst: Catalyst, expression: Expression) -> bool:
    patterns = catalyst.module("org.apache.spark.sql.catalyst.trees.TreePattern")
    return bool(expression.containsPattern(patterns.AGGREGATE_EXPRESSION()))


def _function(alias: Expression) -> Expression:
    """The aggregate that a column is; Refused if it is none, or one that can't be weighed."""
    inner, name = alias, str(alias.name())
    while name_of(inner) in ("Alias", "Cast"):
        inner = inner.child()
    if name_of(inner) != "AggregateExpression":
        raise _combined(name)
    function = inner.aggregateFunction()
    kind, called = name_of(function), str(function.prettyName())
    if inner.isDistinct():
        raise Unweighable(
            f"{name!r} is {called}(DISTINCT …), which a sample does not tell", _REMEDY
        )
    if kind not in ("Count", "CountIf", "Sum", "Average"):
        raise Unweighable(f"{name!r} is {called}(…), which a sample does not tell", _REMEDY)
    for of in (inner.dataType(), alias.dataType()):
        if not str(of.simpleString()).startswith(_NUMBERS):
            why = f"{name!r} is of type {of.simpleString()}, of which no error can be told"
            raise Unweighable(why, _REMEDY)
    return inner


def _combined(name: str) -> Unweighable:
    return Unweighable(
        f"{name!r} is computed from counts or sums, and how far off it is cannot be told",
        "select these by themselves, and let the reader compute it; or leave shed out",
    )


def _estimate(catalyst: Catalyst, function: Expression, weights: _Weights) -> _Estimate:
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

    def and_more(value: Column) -> Column:
        return total(value) + F.max(F.when(counts, value)) * _MORE

    w, doubt = weights.weight, weights.doubt
    if kind in ("Count", "CountIf"):
        counted = F.round(F.coalesce(total(w), F.lit(0.0))).cast("bigint")
        return _Estimate(counted, and_more(doubt))
    x = arguments[0].cast("double")
    # What is exact is told as Spark tells it, in the type that it has.
    is_exact = F.max(F.when(counts, w)) <= 1.0
    exact = catalyst.column(function)
    if kind == "Sum":
        sum_of = total(w * x)
        rounded = F.round(sum_of) if _is_whole(function) else sum_of
        value = F.when(is_exact, exact).otherwise(rounded.cast(str(function.dataType().sql())))
        return _Estimate(value, and_more(doubt * x * x))
    ratio = total(w * x) / total(w)
    about = total(doubt * x * x) - 2.0 * ratio * total(doubt * x) + ratio * ratio * total(doubt)
    value = F.when(is_exact, exact).otherwise(ratio.cast(str(function.dataType().sql())))
    # How far each was from the ratio is not known until the end: two more of the mean of them.
    sampled = F.greatest(F.count(F.when(counts & (w > 1.0), 1)), F.lit(1))
    return _Estimate(value, about * (1.0 + _MORE / sampled) / (total(w) * total(w)))


def _is_whole(function: Expression) -> bool:
    return str(function.dataType().simpleString()) == "bigint"


def errors_shown(
    plan: LogicalPlan, aggregate: LogicalPlan, errors: Mapping[int, Attribute]
) -> dict[str, Attribute]:
    """By the names of the result's columns, their errors; Refused if one has none to tell."""
    found = _origins(plan, aggregate, {each: each for each in errors})
    output = [(str(each.name()), found.get(identity(each))) for each in items(plan.output())]
    return {name: errors[of] for name, of in output if of is not None}


def _origins(plan: LogicalPlan, aggregate: LogicalPlan, weighed: dict[int, int]) -> dict[int, int]:
    """By the identities of a plan's columns, which of the Aggregate's columns they are."""
    if plan.fastEquals(aggregate):
        return weighed
    below: dict[int, int] = {}
    for child in items(plan.children()):
        below |= _origins(child, aggregate, weighed)
    if name_of(plan) != "Project":
        return below
    found = {}
    for each in items(plan.projectList()):
        inner = each.child() if name_of(each) == "Alias" else each
        if name_of(inner) == "AttributeReference":
            if identity(inner) in below:
                found[identity(each)] = below[identity(inner)]
        elif references(inner) & below.keys():
            raise _combined(str(each.name()))
    return found
