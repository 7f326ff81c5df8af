"""Which columns of a grouped result add up: counts and sums, as the query's plan shows them."""

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

# `same`: it is the same in all rows of a key.
Nature = Literal["same", "additive", "other"]
_ADDITIVE = ("Count", "CountIf", "Sum")


def natures(
    catalyst: Catalyst, plan: LogicalPlan, output: list[Attribute], aggregate: LogicalPlan
) -> dict[str, Nature]:
    """What each result column is, by its name."""
    found = _natures(catalyst, plan, aggregate)
    return {str(each.name()): found.get(identity(each), "other") for each in output}


def _natures(catalyst: Catalyst, plan: LogicalPlan, aggregate: LogicalPlan) -> dict[int, Nature]:
    if plan.fastEquals(aggregate):
        return {identity(each): _of_aggregate(catalyst, each) for each in _aliases(plan)}
    below: dict[int, Nature] = {}
    for child in items(plan.children()):
        below |= _natures(catalyst, child, aggregate)
    if name_of(plan) == "Project":
        return {identity(each): _of_column(each, below) for each in items(plan.projectList())}
    return below


def _aliases(plan: LogicalPlan) -> list[Expression]:
    return items(plan.aggregateExpressions())


def _of_aggregate(catalyst: Catalyst, expression: Expression) -> Nature:
    patterns = catalyst.module("org.apache.spark.sql.catalyst.trees.TreePattern")
    if not expression.containsPattern(patterns.AGGREGATE_EXPRESSION()):
        return "same"
    inner = _bare(expression)
    if name_of(inner) != "AggregateExpression" or inner.isDistinct():
        return "other"
    return "additive" if name_of(inner.aggregateFunction()) in _ADDITIVE else "other"


def _of_column(expression: Expression, below: dict[int, Nature]) -> Nature:
    used = {below.get(each, "other") for each in references(expression)}
    if used <= {"same"}:
        return "same"
    if name_of(_bare(expression)) == "AttributeReference":
        return used.pop()
    return "other"


def _bare(expression: Expression) -> Expression:
    """The expression without its name, and without a change of its type."""
    while name_of(expression) in ("Alias", "Cast"):
        expression = expression.child()
    return expression
