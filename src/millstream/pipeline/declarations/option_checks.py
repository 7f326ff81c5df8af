"""What declarations have in common: names, options, durations, choices."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, get_args

from millstream.syntax.duration import parse_duration
from millstream.syntax.names import name_like, name_problem, suggest
from millstream.syntax.source_location import Statement, mistake


def check_name(statement: Statement, kind: str, name: object) -> str:
    """The name of an app, stream or view, if it can be one."""
    problem = name_problem(name)
    if problem:
        raise mistake(
            statement,
            f"{kind} name {name!r} {problem}",
            remedy=f"write {name_like(str(name))!r}" if isinstance(name, str) else "write a text",
        )
    assert isinstance(name, str)
    return name


def check_options(
    statement: Statement, what: str, options: Mapping[str, Any], known: tuple[str, ...]
) -> None:
    for option in options:
        if option not in known:
            raise mistake(
                statement,
                f"{what} has an unknown option {option!r}",
                remedy=suggest(option, known),
                option=option,
            )


def duration(statement: Statement, what: str, option: str, value: object) -> timedelta:
    if isinstance(value, timedelta) and value >= timedelta():
        return value
    try:
        return parse_duration(value if isinstance(value, str) else repr(value))
    except ValueError as error:
        message, _, remedy = str(error).partition("; ")
        raise mistake(
            statement, f"{what} has {option}: {message}", remedy=remedy, option=option
        ) from None


def choice(
    statement: Statement,
    what: str,
    option: str,
    options: Mapping[str, Any],
    default: str,
    choices: Any,
) -> Any:
    value = options.get(option, default)
    known = get_args(choices)
    if value not in known:
        raise mistake(
            statement,
            f"{what} has {option}={value!r}",
            remedy=suggest(str(value), known),
            option=option,
        )
    return value
