"""What one caller sees of a view, stream or ledger."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Visibility:
    """The rows and columns that exist for a caller.

    `rows` has the caller's claims filled in, so callers with equal claims have equal visibilities,
    and share what is computed for one.
    """

    rows: str | None = None  # an SQL condition (DuckDB's dialect); None: every row
    hidden: frozenset[str] = frozenset()  # columns that do not exist for the caller

    @property
    def is_restricted(self) -> bool:
        return self.rows is not None or bool(self.hidden)

    @property
    def fingerprint(self) -> str:
        """A short text that differs between visibilities, for ETags; empty if all is visible."""
        if not self.is_restricted:
            return ""
        text = "\0".join([self.rows or "TRUE", *sorted(self.hidden)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


SEES_ALL = Visibility()
SEES_NOTHING = Visibility(rows="FALSE")
