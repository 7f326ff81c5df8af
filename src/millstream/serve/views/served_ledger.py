"""A view's ledger that this process serves: every entry, from the first one on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from millstream.expression.condition import Predicate
from millstream.serve.settings import ServeSettings
from millstream.serve.views.filter import Projection
from millstream.serve.views.served_view import ServedView
from millstream.values.view_description import ViewColumn, ViewDescription

Row = Mapping[str, Any]
T = TypeVar("T")


class ServedLedger(ServedView):
    """Entries as in the topic. `where` and `select` use the key columns' names: `key.city`."""

    sends_full_history = True

    def __init__(self, view: ServedView, topic: str, settings: ServeSettings) -> None:
        super().__init__(view.name, "ledger", topic, settings)
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
        types = {column.name: column.type for column in description.columns}
        return (
            ViewColumn("id", "string"),
            ViewColumn("key", _struct(types, description.key or ())),
            ViewColumn("kind", "string"),
            ViewColumn("amounts", _struct(types, description.ledger)),
            ViewColumn("reason", "array<string>"),
            ViewColumn("at", "timestamp"),
        )

    def _predicate(self, where: str) -> Predicate:
        return self._with_named_key(super()._predicate(where))

    def _projection(self, select: tuple[str, ...]) -> Projection:
        return self._with_named_key(super()._projection(select))

    def _with_named_key(self, function: Callable[[Row], T]) -> Callable[[Row], T]:
        """`function` over entries whose key is a struct of columns instead of an array."""
        described = self.description
        names = described.key or () if described is not None else ()
        return lambda row: function({**row, "key": dict(zip(names, row["key"], strict=False))})


def _struct(types: Mapping[str, str], names: Sequence[str]) -> str:
    return f"struct<{','.join(f'`{name}`:{types[name]}' for name in names if name in types)}>"
