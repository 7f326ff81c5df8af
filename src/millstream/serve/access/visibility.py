"""A caller's visibility: the policy of a view, stream or ledger with the caller's claims."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from millstream.errors import QueryError
from millstream.expression.cache import TextCache
from millstream.pipeline.model import Policy
from millstream.values.view_description import ViewColumn
from millstream.values.visibility import SEES_ALL, SEES_NOTHING, Visibility

__all__ = ["SEES_ALL", "SEES_NOTHING", "AppliedPolicy", "Visibility"]

_log = logging.getLogger(__name__)
_CAPACITY = 1_000_000  # characters of conditions


class AppliedPolicy:
    """A policy over the columns that rows have. If it does not fit them, nobody sees a row.

    The columns of a view are known once `analyze` has described it; until then nobody sees a row
    of a view that has a policy.
    """

    def __init__(self, policy: Policy, what: str) -> None:
        self._policy = policy
        self._what = what  # in messages, as in "view orders"
        self._columns: tuple[ViewColumn, ...] = ()
        self._cache: TextCache[Visibility] = TextCache(_CAPACITY)
        self._claims = sorted(policy.claims)
        self.problem = ""  # why nobody sees a row; empty: the policy fits

    def fit(self, columns: tuple[ViewColumn, ...], known: frozenset[str] | None = None) -> None:
        """Use these columns; `known`: what can be hidden, if that is not the columns."""
        self._columns = columns
        self.problem = self._find_problem(known or frozenset(each.name for each in columns))
        if self.problem:
            _log.error("%s", self.problem)

    def visibility(self, claims: Mapping[str, Any]) -> Visibility:
        """What a caller with these claims sees."""
        if not self._policy:
            return SEES_ALL
        if self.problem or not self._columns:
            return SEES_NOTHING
        used = {name: claims[name] for name in self._claims if name in claims}
        try:
            key = msgspec.json.encode(used).decode()
        except (TypeError, ValueError):  # a claim that is not JSON; it is NULL in the condition
            return self._compute(used)
        return self._cache.get((key, self._columns), len(key), lambda: self._compute(used))

    def _compute(self, claims: Mapping[str, Any]) -> Visibility:
        rows, hide = self._policy.rows, self._policy.hide
        try:
            return Visibility(
                None if rows is None else rows.fill(claims, self._columns),
                frozenset(name for name, shown in hide.items() if not shown.holds(claims)),
            )
        except QueryError as error:
            _log.error("the policy of %s cannot be applied: %s", self._what, error)
            return SEES_NOTHING

    def _find_problem(self, known: frozenset[str]) -> str:
        rows = self._policy.rows
        if rows is not None and self._columns:
            try:
                rows.check(self._columns)
            except QueryError as error:
                return f"nobody sees a row of {self._what}: its rows={rows.text[:100]!r}: {error}"
        for name in self._policy.hide if known else ():
            if name not in known:
                return (
                    f"nobody sees a row of {self._what}: hide names the column {name!r}, which "
                    f"it does not have; there are: {', '.join(sorted(known))}"
                )
        return ""
