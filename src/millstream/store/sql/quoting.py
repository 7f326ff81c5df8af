"""Names in SQL text."""

from __future__ import annotations


def quote(name: str) -> str:
    """A name as DuckDB reads it, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'
