"""A declaration of a stream or view, with the checks that all options share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, get_args

from millstream.errors import PipelineError
from millstream.syntax.duration import parse_duration
from millstream.syntax.names import name_like, name_problem, suggest
from millstream.syntax.source_location import Statement, mistake

T = TypeVar("T")


def check_name(statement: Statement, kind: str, name: object) -> str:
    """The name of an app, stream or view; PipelineError if it is not valid."""
    if problem := name_problem(name):
        raise mistake(
            statement,
            f"{kind} name {name!r} {problem}",
            remedy=f"write {name_like(str(name))!r}" if isinstance(name, str) else "write a text",
        )
    assert isinstance(name, str)
    return name


@dataclass(frozen=True, slots=True)
class Declaration:
    """A statement that declares a stream or view, and its options as the user wrote them."""

    statement: Statement
    kind: str  # stream or view
    name: str
    options: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        statement: Statement,
        kind: str,
        name: object,
        options: Mapping[str, Any],
        known: tuple[str, ...],
    ) -> Declaration:
        """The declaration; PipelineError for an invalid name or an unknown option."""
        declared = cls(statement, kind, check_name(statement, kind, name), options)
        for option in options:
            if option not in known:
                remedy = suggest(option, known)
                raise declared.mistake(f"has an unknown option {option!r}", remedy, option)
        return declared

    def mistake(self, problem: str, remedy: str = "", option: str = "") -> PipelineError:
        """The error to raise about the declaration, at the line of the option."""
        message = f"{self.kind} {self.name!r} {problem}"
        return mistake(self.statement, message, remedy=remedy, option=option)

    def parse(self, option: str, parse: Callable[[Any], T], value: Any) -> T:
        """The result of `parse`; its PipelineError gets the line in the user's file."""
        try:
            return parse(value)
        except PipelineError as error:
            raise mistake(
                self.statement,
                f"{self.kind} {self.name!r}: {error.message}",
                remedy=error.remedy,
                option=option,
                line=error.line or 1,
            ) from None

    def get(self, option: str, default: Any = None) -> Any:
        """The option as the user wrote it."""
        return self.options.get(option, default)

    def duration(self, option: str, default: str | timedelta) -> timedelta:
        """The option as a duration; PipelineError if it is none."""
        value = self.get(option, default)
        if isinstance(value, timedelta) and value >= timedelta():
            return value
        try:
            return parse_duration(value if isinstance(value, str) else repr(value))
        except ValueError as error:
            problem, _, remedy = str(error).partition("; ")
            raise self.mistake(f"has {option}: {problem}", remedy, option) from None

    def choice(self, option: str, default: str, choices: Any) -> Any:
        """The option as one of the literals `choices`; PipelineError if it is none of them."""
        value, known = self.get(option, default), get_args(choices)
        if value not in known:
            raise self.mistake(f"has {option}={value!r}", suggest(str(value), known), option)
        return value

    def column_names(self, option: str, remedy: str) -> tuple[str, ...]:
        """The option as one name or several different ones; empty if it is not given."""
        value = self.get(option)
        names = (value,) if isinstance(value, str) else value
        if names is None:
            return ()
        if (
            not isinstance(names, (list, tuple))
            or not names
            or not all(isinstance(name, str) and name for name in names)
            or len(set(names)) < len(names)
        ):
            raise self.mistake(f"has {option}={value!r}", remedy, option)
        return tuple(names)
