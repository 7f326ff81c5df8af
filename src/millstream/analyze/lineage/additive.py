"""Finds the columns of a grouped result that are counts or sums."""

from __future__ import annotations

from typing import Literal

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

# `constant`: it has the same value in all rows of a key.
ColumnKind = Literal["constant", "additive", "other"]
_ADDITIVE = ("Count", "CountIf", "Sum")


def column_kinds(
    catalyst: Catalyst, plan: LogicalPlan, output: list[Attribute], aggregate: LogicalPlan
) -> dict[str, ColumnKind]:
    """The kind of each result column, by its name."""
    own = {
        identity(each): _aggregate_kind(catalyst, each)
        for each in items(aggregate.aggregateExpressions())
    }
    found = columns_above(plan, aggregate, own, _project_kind)
    return {str(each.name()): found.get(identity(each), "other") for each in output}


def _aggregate_kind(catalyst: Catalyst, expression: Expression) -> ColumnKind:
    if not catalyst.contains(expression, "AGGREGATE_EXPRESSION"):
        return "constant"
    inner = unwrapped(expression)
    if name_of(inner) != "AggregateExpression" or inner.isDistinct():
        return "other"
    return "additive" if name_of(inner.aggregateFunction()) in _ADDITIVE else "other"


def _project_kind(expression: Expression, below: dict[int, ColumnKind]) -> ColumnKind:
    used = {below.get(each, "other") for each in references(expression)}
    if used <= {"constant"}:
        return "constant"
    if name_of(unwrapped(expression)) == "AttributeReference":
        return used.pop()
    return "other"
