"""Finds the columns of a grouped result that are counts or sums."""

from __future__ import annotations

from typing import Literal

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

# `constant`: it has the same value in all rows of a key.
ColumnKind = Literal["constant", "additive", "other"]
_ADDITIVE = ("Count", "CountIf", "Sum")


def column_kinds(
    catalyst: Catalyst, plan: LogicalPlan, output: list[Attribute], aggregate: LogicalPlan
) -> dict[str, ColumnKind]:
    """The kind of each result column, by its name."""
    found = _kinds(catalyst, plan, aggregate)
    return {str(each.name()): found.get(identity(each), "other") for each in output}


def _kinds(catalyst: Catalyst, plan: LogicalPlan, aggregate: LogicalPlan) -> dict[int, ColumnKind]:
    if plan.fastEquals(aggregate):
        aggregates = items(plan.aggregateExpressions())
        return {identity(each): _aggregate_kind(catalyst, each) for each in aggregates}
    below: dict[int, ColumnKind] = {}
    for child in items(plan.children()):
        below |= _kinds(catalyst, child, aggregate)
    if name_of(plan) == "Project":
        return {identity(each): _project_kind(each, below) for each in items(plan.projectList())}
    return below


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


def unwrapped(expression: Expression) -> Expression:
    """The expression without its aliases and casts."""
    while name_of(expression) in ("Alias", "Cast"):
        expression = expression.child()
    return expression
