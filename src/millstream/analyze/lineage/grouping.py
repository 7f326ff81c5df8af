"""The groups of a result, and the columns that show them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

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

_T = TypeVar("_T")


def grouped_by(
    catalyst: Catalyst, plan: LogicalPlan, output: list[Attribute], aggregate: LogicalPlan
) -> dict[str, set[str]]:
    """The names of the grouping expressions, each with the columns that depend on it."""
    groups = [
        group
        for group in items(aggregate.groupingExpressions())
        if references(group) and str(group.sql()) != "spark_grouping_id"
    ]
    shown = columns_above(plan, aggregate, _own_groups(catalyst, aggregate, groups), _groups)
    found: dict[str, set[str]] = {}
    for number, group in enumerate(groups):
        columns = {a.name(): shown.get(identity(a), set()) for a in output}
        alone = [name for name, numbers in columns.items() if numbers == {number}]
        name = alone[0] if alone else str(group.sql()).replace("`", "")
        found[name] = {each for each, numbers in columns.items() if number in numbers}
    return found


def _own_groups(
    catalyst: Catalyst, aggregate: LogicalPlan, groups: list[Expression]
) -> dict[int, set[int]]:
    """For each column of an Aggregate, the numbers of the groups in its expression."""
    texts = [rf"(?<!\w){re.escape(str(group.toString()))}(?!\d)" for group in groups]
    found = {}
    for expression in items(aggregate.aggregateExpressions()):
        if not catalyst.contains(expression, "AGGREGATE_EXPRESSION"):
            text = str(expression.toString())
            numbers = {number for number, group in enumerate(texts) if re.search(group, text)}
            found[identity(expression)] = numbers
    return found


def _groups(expression: Expression, below: dict[int, set[int]]) -> set[int]:
    return set[int]().union(*(below.get(each, set()) for each in references(expression)))


def columns_above(
    plan: LogicalPlan,
    aggregate: LogicalPlan,
    own: dict[int, _T],
    project: Callable[[Expression, dict[int, _T]], _T | None],
) -> dict[int, _T]:
    """A property of the columns of `plan`, derived from that of its Aggregate's columns, `own`.

    `project` derives the property of an expression from those of the columns below it.
    """
    if plan.fastEquals(aggregate):
        return own
    below: dict[int, _T] = {}
    for child in items(plan.children()):
        below |= columns_above(child, aggregate, own, project)
    if name_of(plan) != "Project":
        return below
    found = {identity(each): project(each, below) for each in items(plan.projectList())}
    return {each: value for each, value in found.items() if value is not None}


def missing_in_key(groups: dict[str, set[str]], key: tuple[str, ...]) -> tuple[str, ...]:
    """The groups that no column of the key shows."""
    lowered = {name.lower() for name in key}
    return tuple(
        name
        for name, columns in groups.items()
        if not any(column.lower() in lowered for column in columns)
    )
