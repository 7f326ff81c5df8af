"""The options that control which rows of a view are output: trigger, accumulation, ledger."""

from __future__ import annotations

from typing import NamedTuple

from millstream.errors import QueryError
from millstream.expression.condition import parse
from millstream.pipeline.declarations.declaration import Declaration
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

OUTPUT_OPTIONS = ("trigger", "accumulation", "ledger")


class OutputOptions(NamedTuple):
    """The parsed options."""

    trigger: Trigger
    accumulation: Accumulation
    ledger: tuple[str, ...]


def declare_output(
    declared: Declaration, key: tuple[str, ...] | None, query: SelectQuery | None
) -> OutputOptions:
    """The output options of a view; `query` is its SQL, if it has any."""
    output = OutputOptions(
        _trigger(declared),
        declared.choice("accumulation", "accumulate", Accumulation),
        _ledger(declared, key, query),
    )
    if key is None:
        _check_defaults(declared, output)
    return output


def _trigger(declared: Declaration) -> Trigger:
    value = declared.get("trigger")
    if value is None:
        return EVERY_CHANGE
    try:
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is no trigger; write {FORMS}")
        trigger = parse_trigger(value)
    except ValueError as error:
        problem, _, remedy = str(error).partition("; ")
        raise declared.mistake(f"has trigger: {problem}", remedy, "trigger") from None
    if isinstance(trigger, When):
        try:
            parse(trigger.condition, "the condition")
        except QueryError as error:
            problem = f"has trigger={value[:100]!r}: {error.message}"
            remedy = "write a condition on result columns, as in 'when n > 100'"
            raise declared.mistake(problem, remedy, "trigger") from None
    return trigger


def _ledger(
    declared: Declaration, key: tuple[str, ...] | None, query: SelectQuery | None
) -> tuple[str, ...]:
    remedy = "write the names of amounts in its result, each once, as in ledger=['clicks']"
    names = declared.column_names("ledger", remedy)
    if len({name.lower() for name in names}) < len(names):
        raise declared.mistake(f"has ledger={declared.get('ledger')!r}", remedy, "ledger")
    columns = query.columns if query is not None else None
    for name in names:
        if name.lower() in {each.lower() for each in key or ()}:
            problem = f"has the key column {name!r} in its ledger, and a key is no amount"
            raise declared.mistake(problem, "name columns that count or sum", "ledger")
        if columns is not None and name.lower() not in {each.lower() for each in columns}:
            problem = f"has {name!r} in its ledger, which is not in its result"
            remedy = suggest(name, columns) or f"select it, as in … AS {name}"
            raise declared.mistake(problem, remedy, "ledger")
    return names


def _check_defaults(declared: Declaration, output: OutputOptions) -> None:
    """PipelineError for an output option of a view without key, whose rows never change."""
    given = {
        "trigger": output.trigger != EVERY_CHANGE,
        "accumulation": output.accumulation != "accumulate",
        "ledger": bool(output.ledger),
    }
    for option in (option for option, is_given in given.items() if is_given):
        problem = f"has {option} but no key, and only a table's rows change"
        raise declared.mistake(problem, f"add key=[…], or leave {option} out", option)
