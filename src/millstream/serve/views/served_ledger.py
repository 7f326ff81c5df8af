"""A view's ledger that this process serves: every entry, from the first one on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from millstream.expression.condition import Predicate
from millstream.pipeline.model import NO_POLICY, Policy
from millstream.serve.access.visibility import SEES_ALL, Visibility
from millstream.serve.settings import ServeSettings
from millstream.serve.views.filter import Projection
from millstream.serve.views.served_view import ServedView
from millstream.values.view_description import ViewColumn, ViewDescription

Row = Mapping[str, Any]
T = TypeVar("T")


class ServedLedger(ServedView):
    """Entries as in the topic. `where` and `select` use the key columns' names: `key.city`."""

    sends_full_history = True

    def __init__(
        self, view: ServedView, topic: str, settings: ServeSettings, policy: Policy = NO_POLICY
    ) -> None:
        super().__init__(view.name, "ledger", topic, settings, policy=policy)
        self._view = view

    @property
    def watermark_json(self) -> bytes:
        return self._view.watermark_json

    @property
    def is_uncompacted(self) -> bool:
        return True

    def _is_exact(self, columns: tuple[ViewColumn, ...]) -> bool:
        return True

    def _columns_of(self, description: ViewDescription) -> tuple[ViewColumn, ...]:
        return ledger_columns(description)

    def _fit_policy(self) -> None:
        described = self.description
        self.policy.fit(self.columns, frozenset(described.ledger) if described else None)

    def visible_columns(self, visibility: Visibility) -> tuple[ViewColumn, ...]:
        """The columns, without hidden amounts."""
        if self.description is None or not visibility.hidden:
            return self.columns
        amounts = [name for name in self.description.ledger if name not in visibility.hidden]
        shown = ViewColumn("amounts", _struct(_types(self.description), amounts))
        return tuple(shown if each.name == "amounts" else each for each in self.columns)

    def _visible(self, visibility: Visibility) -> Predicate | None:
        visible = super()._visible(visibility)
        return None if visible is None else self._with_named_key(visible)

    def _predicate(self, where: str, columns: tuple[ViewColumn, ...]) -> Predicate:
        return self._with_named_key(super()._predicate(where, columns))

    def _projection(
        self,
        select: tuple[str, ...] | None,
        columns: tuple[ViewColumn, ...],
        visibility: Visibility,
        *,
        lineage: bool,
    ) -> Projection:
        project = super()._projection(select, columns, SEES_ALL, lineage=lineage)
        if select:
            project = self._with_named_key(project)
        return _without_amounts(project, visibility.hidden) if visibility.hidden else project

    def _with_named_key(self, function: Callable[[Row], T]) -> Callable[[Row], T]:
        """`function` over entries whose key is a struct of columns instead of an array."""
        described = self.description
        names = described.key or () if described is not None else ()
        return lambda row: function({**row, "key": dict(zip(names, row["key"], strict=False))})


def ledger_columns(description: ViewDescription) -> tuple[ViewColumn, ...]:
    """The columns of a ledger's entries."""
    types = _types(description)
    return (
        ViewColumn("id", "string"),
        ViewColumn("key", _struct(types, description.key or ())),
        ViewColumn("kind", "string"),
        ViewColumn("amounts", _struct(types, description.ledger)),
        ViewColumn("reason", "array<string>"),
        ViewColumn("at", "timestamp"),
    )


def _types(description: ViewDescription) -> dict[str, str]:
    return {column.name: column.type for column in description.columns}


def _without_amounts(project: Projection, hidden: frozenset[str]) -> Projection:
    """`project` over entries that lack these amounts."""

    def visible(row: Row) -> dict[str, Any]:
        amounts = {name: each for name, each in row["amounts"].items() if name not in hidden}
        return project({**row, "amounts": amounts})

    return visible


def _struct(types: Mapping[str, str], names: Sequence[str]) -> str:
    return f"struct<{','.join(f'`{name}`:{types[name]}' for name in names if name in types)}>"
