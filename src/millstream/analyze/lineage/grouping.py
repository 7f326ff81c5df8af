"""The groups of a result, and the columns that show them."""

from __future__ import annotations

import re

from millstream.analyze.spark.catalyst import (
    Attribute,
    Catalyst,
    LogicalPlan,
    identity,
    items,
    name_of,
    references,
)


def grouped_by(
    catalyst: Catalyst, plan: LogicalPlan, output: list[Attribute], aggregate: LogicalPlan
) -> dict[str, set[str]]:
    """The names of the grouping expressions, each with the columns that depend on it."""
    groups = [
        group
        for group in items(aggregate.groupingExpressions())
        if references(group) and str(group.sql()) != "spark_grouping_id"
    ]
    shown = _groups_of_columns(
        catalyst, plan, aggregate, [str(group.toString()) for group in groups]
    )
    found: dict[str, set[str]] = {}
    for number, group in enumerate(groups):
        columns = {a.name(): shown.get(identity(a), set()) for a in output}
        alone = [name for name, numbers in columns.items() if numbers == {number}]
        name = alone[0] if alone else str(group.sql()).replace("`", "")
        found[name] = {each for each, numbers in columns.items() if number in numbers}
    return found


def _groups_of_columns(
    catalyst: Catalyst, plan: LogicalPlan, aggregate: LogicalPlan, groups: list[str]
) -> dict[int, set[int]]:
    """For each attribute of a plan, the numbers of the groups that it depends on."""
    if plan.fastEquals(aggregate):
        shown = {}
        for expression in items(plan.aggregateExpressions()):
            text = str(expression.toString())
            if not catalyst.contains(expression, "AGGREGATE_EXPRESSION"):
                shown[identity(expression)] = {
                    number
                    for number, group in enumerate(groups)
                    if re.search(rf"(?<!\w){re.escape(group)}(?!\d)", text)
                }
        return shown
    below: dict[int, set[int]] = {}
    for child in items(plan.children()):
        below |= _groups_of_columns(catalyst, child, aggregate, groups)
    if name_of(plan) == "Project":
        return {
            identity(each): set[int]().union(*(below.get(i, set()) for i in references(each)))
            for each in items(plan.projectList())
        }
    return below


def missing_in_key(groups: dict[str, set[str]], key: tuple[str, ...]) -> tuple[str, ...]:
    """The groups that no column of the key shows."""
    lowered = {name.lower() for name in key}
    return tuple(
        name
        for name, columns in groups.items()
        if not any(column.lower() in lowered for column in columns)
    )
