from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.cli.shared.text import format_row, printable, value_text


def test_rows_are_shown_as_names_and_values() -> None:
    row = {"city": "Köln", "n": 3, "window": {"start": "a", "end": "b"}, "gone": None}
    assert format_row(row) == "city=Köln  n=3  window=a … b  gone=null"


def test_events_cannot_steer_the_terminal() -> None:
    assert value_text("\x1b[2Jgone\x9b\u202e") == "\\x1b[2Jgone\\x9b\\u202e"
    assert "\x1b" not in value_text({"a": ["\x1b"]})


@given(st.text())
def test_what_is_shown_has_no_control_characters(text: str) -> None:
    assert all(
        ord(character) >= 32 and not 127 <= ord(character) < 160 for character in printable(text)
    )
