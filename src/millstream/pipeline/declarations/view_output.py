"""The options that say when a view's rows are shown, and how: trigger, accumulation, ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from millstream.errors import QueryError
from millstream.expression.condition import parse
from millstream.pipeline.declarations.option_checks import choice
from millstream.pipeline.trigger import (
    EVERY_CHANGE,
    FORMS,
    Accumulation,
    Trigger,
    When,
    parse_trigger,
)
from millstream.pipeline.view_sql import SelectQuery
from millstream.syntax.names import suggest
from millstream.syntax.source_location import Statement, mistake

OUTPUT_OPTIONS = ("trigger", "accumulation", "ledger")


class OutputOptions(NamedTuple):
    trigger: Trigger
    accumulation: Accumulation
    ledger: tuple[str, ...]


def declare_output(
    statement: Statement,
    what: str,
    options: Mapping[str, Any],
    key: tuple[str, ...] | None,
    query: SelectQuery | None,
) -> OutputOptions:
    """What the options say; `query` is the view's SQL, where it has any."""
    declared = OutputOptions(
        _trigger(statement, what, options.get("trigger")),
        choice(statement, what, "accumulation", options, "accumulate", Accumulation),
        _ledger(statement, what, options.get("ledger"), key, query),
    )
    if key is None:
        _check_plain(statement, what, declared)
    return declared


def _trigger(statement: Statement, what: str, value: object) -> Trigger:
    if value is None:
        return EVERY_CHANGE
    try:
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is no trigger; write {FORMS}")
        trigger = parse_trigger(value)
    except ValueError as error:
        message, _, remedy = str(error).partition("; ")
        raise mistake(
            statement, f"{what} has trigger: {message}", remedy=remedy, option="trigger"
        ) from None
    if isinstance(trigger, When):
        try:
            parse(trigger.condition, "the condition")
        except QueryError as error:
            raise mistake(
                statement,
                f"{what} has trigger={value[:100]!r}: {error.message}",
                remedy="write a condition on result columns, as in 'when n > 100'",
                option="trigger",
            ) from None
    return trigger


def _ledger(
    statement: Statement,
    what: str,
    value: object,
    key: tuple[str, ...] | None,
    query: SelectQuery | None,
) -> tuple[str, ...]:
    if value is None:
        return ()
    names = (value,) if isinstance(value, str) else value
    if (
        not isinstance(names, (list, tuple))
        or not names
        or not all(isinstance(name, str) and name for name in names)
        or len({name.lower() for name in names}) < len(names)
    ):
        raise mistake(
            statement,
            f"{what} has ledger={value!r}",
            remedy="write the names of amounts in its result, each once, as in ledger=['clicks']",
            option="ledger",
        )
    for name in names:
        if name.lower() in {each.lower() for each in key or ()}:
            raise mistake(
                statement,
                f"{what} has the key column {name!r} in its ledger, and a key is no amount",
                remedy="name columns that count or sum",
                option="ledger",
            )
        if query is not None and query.columns is not None:
            known = [each.lower() for each in query.columns]
            if name.lower() not in known:
                raise mistake(
                    statement,
                    f"{what} has {name!r} in its ledger, which is not in its result",
                    remedy=suggest(name, query.columns) or f"select it, as in … AS {name}",
                    option="ledger",
                )
    return tuple(names)


def _check_plain(statement: Statement, what: str, declared: OutputOptions) -> None:
    """Only rows that replace each other can be held back, taken back or made up for."""
    has = {
        "trigger": declared.trigger != EVERY_CHANGE,
        "accumulation": declared.accumulation != "accumulate",
        "ledger": bool(declared.ledger),
    }
    for option, given in has.items():
        if given:
            raise mistake(
                statement,
                f"{what} has {option} but no key, and only a table's rows change",
                remedy=f"add key=[…], or leave {option} out",
                option=option,
            )
