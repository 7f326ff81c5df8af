"""The documents, as the tests read them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *DOCS.rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "clients").glob("*/*.md"),
    ]
)


def read(name: str) -> str:
    """The text of a document, by its path from the repository's root."""
    return (ROOT / name).read_text(encoding="utf-8")


def name_of(document: Path) -> str:
    """A document's path from the repository's root."""
    return str(document.relative_to(ROOT))


def snippets(text: str) -> list[tuple[str, str]]:
    """The Python and SQL in a document: language and code."""
    return re.findall(r"```(python|sql)\n(.*?)```", text, re.DOTALL)


def without_code(text: str) -> str:
    """A document without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchor(heading: str) -> str:
    """The anchor that GitHub gives to a heading."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w -]", "", plain.lower()).replace(" ", "-")


def headings(text: str) -> list[str]:
    """The headings of a document."""
    return re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE)
