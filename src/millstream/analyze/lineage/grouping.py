"""What a result is grouped by, and which of its columns show it."""

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
    """What the result is grouped by, and for each the columns that show it."""
    groups = [
        group
        for group in items(aggregate.groupingExpressions())
        if references(group) and str(group.sql()) != "spark_grouping_id"
    ]
    shown = _shown(catalyst, plan, aggregate, [str(group.toString()) for group in groups])
    found: dict[str, set[str]] = {}
    for number, group in enumerate(groups):
        columns = {a.name(): shown.get(identity(a), set()) for a in output}
        alone = [name for name, numbers in columns.items() if numbers == {number}]
        name = alone[0] if alone else str(group.sql()).replace("`", "")
        found[name] = {each for each, numbers in columns.items() if number in numbers}
    return found


def _shown(
    catalyst: Catalyst, plan: LogicalPlan, aggregate: LogicalPlan, groups: list[str]
) -> dict[int, set[int]]:
    """For each attribute of a plan, the numbers of the groups that its expression is made of."""
    if plan.fastEquals(aggregate):
        patterns = catalyst.module("org.apache.spark.sql.catalyst.trees.TreePattern")
        shown = {}
        for expression in items(plan.aggregateExpressions()):
            text = str(expression.toString())
            if not expression.containsPattern(patterns.AGGREGATE_EXPRESSION()):
                shown[identity(expression)] = {
                    number
                    for number, group in enumerate(groups)
                    if re.search(rf"(?<!\w){re.escape(group)}(?!\d)", text)
                }
        return shown
    below: dict[int, set[int]] = {}
    for child in items(plan.children()):
        below |= _shown(catalyst, child, aggregate, groups)
    if name_of(plan) == "Project":
        return {
            identity(each): set[int]().union(*(below.get(i, set()) for i in references(each)))
            for each in items(plan.projectList())
        }
    return below


def missing_in_key(groups: dict[str, set[str]], key: tuple[str, ...]) -> tuple[str, ...]:
    """What no column of the key shows, though the result is grouped by it."""
    lowered = {name.lower() for name in key}
    return tuple(
        name
        for name, columns in groups.items()
        if not any(column.lower() in lowered for column in columns)
    )
