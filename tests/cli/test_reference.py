"""The reference of commands in the documents."""

from __future__ import annotations

from tests.docs.pages import read

from millstream.cli.group import millstream
from millstream.cli.reference import describe


def test_the_page_of_commands_is_up_to_date() -> None:
    assert read("docs/reference/cli.md") == describe(), (
        "run python -m millstream.cli.reference > docs/reference/cli.md"
    )


def test_the_page_has_every_command() -> None:
    page = describe()
    assert all(f"\n### millstream {name}\n" in page for name in millstream.commands)
