"""docs/reference/glossary.md: one line per word, in order, in the words of today."""

from __future__ import annotations

import re

from tests.docs.pages import read

PAGE = read("docs/reference/glossary.md")
WORDS = re.findall(r"^\| ([a-z][^|]*) \|", PAGE.partition("|---|---|")[2], re.MULTILINE)


def test_each_word_has_one_line_and_they_are_in_order() -> None:
    assert len(WORDS) > 80
    assert sorted(set(WORDS), key=str.lower) == WORDS


def test_the_words_of_the_row_state_the_dead_letters_and_the_audit_are_there() -> None:
    states = {"provisional", "final", "corrected", "row state"}
    letters = {"dead letter", "rejected", "late", "failed", "broken", "damaged", "future"}
    assert states | letters | {"duplicate", "shed", "settled", "watermark", "trigger"} <= set(WORDS)
