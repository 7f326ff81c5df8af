"""Errors: their text and their tree."""

from __future__ import annotations

import re

import pytest

from millstream import errors
from millstream.errors import LogError, MillstreamError, PipelineError, SettingsError


def test_an_error_says_what_is_wrong_and_then_what_to_do() -> None:
    assert str(SettingsError("it is wrong", remedy="do this")) == "it is wrong; do this"
    assert str(SettingsError("it is wrong")) == "it is wrong"


@pytest.mark.parametrize(
    ("file", "line", "written"),
    [("a.py", 3, "a.py:3: bad; fix"), ("a.py", 0, "a.py: bad; fix"), (None, 3, "bad; fix")],
)
def test_a_pipeline_error_starts_with_its_location(
    file: str | None, line: int, written: str
) -> None:
    assert str(PipelineError("bad", file=file, line=line, remedy="fix")) == written


def test_only_errors_that_can_pass_by_themselves_allow_a_retry() -> None:
    assert LogError("away").retry
    assert not PipelineError("bad").retry


def test_the_tree_in_the_docstring_is_the_tree_in_the_code() -> None:
    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__ or ""))

    def below(cls: type[MillstreamError]) -> set[str]:
        own = {each for each in cls.__subclasses__() if each.__module__ == errors.__name__}
        return {each.__name__ for each in own}.union(*(below(each) for each in own))

    assert drawn == below(MillstreamError)
