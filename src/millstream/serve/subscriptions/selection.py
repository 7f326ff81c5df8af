"""Which rows and columns a client wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from millstream.serve.access.visibility import SEES_ALL, Visibility
from millstream.serve.views.encoding import Encoding
from millstream.serve.views.served_view import ServedView

_DEFAULT_LIMIT = 100  # rows of a view without key


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Which rows a client wants, and which of their columns."""

    where: str | None = None
    select: tuple[str, ...] | None = None
    lineage: bool = False
    limit: int | None = None
    visibility: Visibility = SEES_ALL  # which rows and columns exist for the client

    def encoding(self, served: ServedView) -> Encoding:
        return served.encoding(self.where, self.select, self.lineage, self.visibility)

    def row_limit(self, served: ServedView) -> int | None:
        """The limit for a snapshot; views without key have a default."""
        if self.limit is None and not (served.table.keyed or served.sends_full_history):
            return _DEFAULT_LIMIT
        return self.limit

    def changed(self, fields: Mapping[str, Any]) -> RowSelection:
        """The same with another `where` or `select`, if the fields have them."""
        where = fields.get("where", self.where) or None
        return replace(
            self, where=where, select=tuple(fields.get("select", self.select) or ()) or None
        )
