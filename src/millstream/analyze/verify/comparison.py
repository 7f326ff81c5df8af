"""Compares a row of a view with the recomputed one: exactly, where that is possible.

A floating-point sum depends on the order of its terms, and a sketch on the order in which its parts
were merged. So these may differ within a tolerance. Everything else must be equal.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame

from millstream.analyze.spark.catalyst import Catalyst, LogicalPlan, identity, items, name_of
from millstream.values.view_description import ViewColumn

ROUNDING = 1e-9  # of floating point, relative
_SKETCHES = re.compile(
    r"\b(?:approx_\w+|percentile_approx|(?:hll|kll|theta|tuple)_\w+|count_min_sketch)\("
)
_COLLECTED = re.compile(r"\bcollect_(?:list|set)\(")
_NUMBER = re.compile(r"#\d+")
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How to compare the columns of a view's rows."""

    columns: tuple[str, ...]
    tolerances: Mapping[str, float]  # relative, of the columns that have one
    unordered: frozenset[str]  # lists whose order has no meaning

    def differing(self, one: Row, other: Row) -> tuple[str, ...]:
        """The columns in which two rows differ."""
        return tuple(name for name in self.columns if not self._is_same(name, one, other))

    def _is_same(self, name: str, one: Row, other: Row) -> bool:
        mine, theirs = one.get(name), other.get(name)
        if name in self.unordered and isinstance(mine, list) and isinstance(theirs, list):
            mine, theirs = sorted(mine, key=text_of), sorted(theirs, key=text_of)
        return _close(mine, theirs, self.tolerances.get(name, 0.0))


def comparison_of(rows: DataFrame, columns: Sequence[ViewColumn], sketches: float) -> Comparison:
    """How to compare a query's rows; `sketches` is the relative tolerance of estimates."""
    estimated, by_type = _made_by(rows, _SKETCHES), comparison_by_type(columns)
    loose = {column.name: sketches for column in columns if column.name in estimated}
    unordered = frozenset(_made_by(rows, _COLLECTED))
    return Comparison(by_type.columns, {**by_type.tolerances, **loose}, unordered)


def comparison_by_type(columns: Sequence[ViewColumn]) -> Comparison:
    """How to compare rows if only the types of their columns are known."""
    names = tuple(column.name for column in columns)
    inexact = [each.name for each in columns if "double" in each.type or "float" in each.type]
    return Comparison(names, dict.fromkeys(inexact, ROUNDING), frozenset())


def text_of(value: object) -> str:
    """A value as JSON; equal values have equal texts."""
    return json.dumps(value, default=str, sort_keys=True, ensure_ascii=False)


def _close(one: Any, other: Any, tolerance: float) -> bool:
    match one, other:
        case (bool(), _) | (_, bool()):
            return one is other
        case (int() | float() | Decimal(), int() | float() | Decimal()):
            if not tolerance:
                return bool(one == other)
            return math.isclose(float(one), float(other), rel_tol=tolerance, abs_tol=ROUNDING)
        case (dict(), dict()):
            return one.keys() == other.keys() and all(
                _close(one[name], other[name], tolerance) for name in one
            )
        case (list(), list()):
            return len(one) == len(other) and all(
                _close(mine, theirs, tolerance) for mine, theirs in zip(one, other, strict=True)
            )
        case _:
            return bool(one == other)


def _made_by(rows: DataFrame, functions: re.Pattern[str]) -> set[str]:
    """The columns that such functions compute, also through renames and further expressions."""
    plan, found = Catalyst.of(rows).analysed(rows), set[str]()
    _collect(plan, functions, found)
    return {str(each.name()) for each in items(plan.output()) if f"#{identity(each)}" in found}


def _collect(plan: LogicalPlan, functions: re.Pattern[str], found: set[str]) -> None:
    """Collect the attributes that such functions make, by their ids in the plan's text."""
    for child in items(plan.children()):
        _collect(child, functions, found)
    if name_of(plan) not in ("Project", "Aggregate"):
        return
    for each in items(plan.expressions()):
        text = str(each.toString())  # one call, where a walk through the tree takes many
        made, named, attribute = text.rpartition(" AS ")
        if named and (functions.search(made) or found & set(_NUMBER.findall(made))):
            found.add(_NUMBER.findall(attribute)[-1])
