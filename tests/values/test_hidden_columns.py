"""The one list of hidden columns."""

from __future__ import annotations

from pathlib import Path

from millstream.values import hidden_columns
from millstream.values.hidden_columns import LINEAGE, RESERVED

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "pipeline_options.md"


def test_every_hidden_column_is_reserved() -> None:
    names = {name for name in vars(hidden_columns).values() if isinstance(name, str)}
    assert {name for name in names if name.startswith("_") and "__" not in name} == RESERVED
    assert LINEAGE < RESERVED


def test_the_reference_lists_every_reserved_name() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in sorted(RESERVED) if f"`{name}`" not in text] == []
