"""A view's ledger as this process serves it: every entry, from the first one on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from millstream.expression.condition import Predicate
from millstream.serve.settings import ServeSettings
from millstream.serve.views.filter import Pick
from millstream.serve.views.served_view import Live
from millstream.values.report import Column, ViewDescription

Row = Mapping[str, Any]
T = TypeVar("T")


class Ledger(Live):
    """Entries as the topic holds them; in `where` and `select` the key has its columns' names."""

    adds_up = True

    def __init__(self, view: Live, topic: str, settings: ServeSettings) -> None:
        super().__init__(view.name, "ledger", topic, settings)
        self._view = view

    @property
    def watermark_json(self) -> bytes:
        return self._view.watermark_json

    @property
    def is_whole(self) -> bool:
        return True

    def _is_exact(self, columns: tuple[Column, ...]) -> bool:
        return True

    def _columns_of(self, description: ViewDescription) -> tuple[Column, ...]:
        types = {column.name: column.type for column in description.columns}
        return (
            Column("id", "string"),
            Column("key", _struct(types, description.key or ())),
            Column("kind", "string"),
            Column("amounts", _struct(types, description.ledger)),
            Column("reason", "array<string>"),
            Column("at", "timestamp"),
        )

    def _predicate(self, where: str) -> Predicate:
        return self._over_named_keys(super()._predicate(where))

    def _pick(self, select: tuple[str, ...]) -> Pick:
        return self._over_named_keys(super()._pick(select))

    def _over_named_keys(self, function: Callable[[Row], T]) -> Callable[[Row], T]:
        described = self.description
        names = described.key or () if described is not None else ()
        return lambda row: function({**row, "key": dict(zip(names, row["key"], strict=False))})


def _struct(types: Mapping[str, str], names: Sequence[str]) -> str:
    return f"struct<{','.join(f'`{name}`:{types[name]}' for name in names if name in types)}>"
