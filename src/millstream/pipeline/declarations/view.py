"""A view, from what the user wrote."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, get_args

from millstream.errors import PipelineError
from millstream.pipeline.declarations.option_checks import (
    check_name,
    check_options,
    choice,
    duration,
)
from millstream.pipeline.declarations.view_output import OUTPUT_OPTIONS, declare_output
from millstream.pipeline.declarations.view_shedding import declare_shed
from millstream.pipeline.model import Mode, OnDataLoss, Reading, View
from millstream.pipeline.view_sql import SelectQuery, parse_select
from millstream.syntax.names import suggest
from millstream.syntax.source_location import Statement, mistake

VIEW_OPTIONS = (
    *("key", "keep", "mode", "sql", "name", "reads", "description", "on_data_loss"),
    *OUTPUT_OPTIONS,
    "shed",
)


def declare_view(
    statement: Statement,
    name: object,
    options: Mapping[str, Any],
    function: Callable[..., Any] | None = None,
) -> View:
    """The view that the user's call or statement describes, by a function or by SQL."""
    name = check_name(statement, "view", name)
    what = f"view {name!r}"
    check_options(statement, what, options, VIEW_OPTIONS)
    key = _key(statement, what, options.get("key"))
    sql, query = options.get("sql"), None
    if function is not None:
        inputs = _parameters(statement, what, function)
    else:
        query = _query(statement, what, sql)
        inputs = query.inputs
        _check_key(statement, what, key, query)
    keep = options.get("keep")
    output = declare_output(statement, what, options, key, query)
    return View(
        name=name,
        inputs=inputs,
        key=key,
        keep=_keep(statement, what, keep, key) if keep is not None else None,
        mode=choice(statement, what, "mode", options, "auto", Mode),
        description=options.get("description") or inspect.getdoc(function) or "",
        function=function,
        sql=sql,
        location=statement.location,
        reads=_reads(statement, what, options.get("reads") or {}, inputs),
        on_data_loss=_on_data_loss(statement, what, options),
        trigger=output.trigger,
        accumulation=output.accumulation,
        ledger=output.ledger,
        shed=declare_shed(statement, what, options.get("shed"), key, output),
    )


def _on_data_loss(statement: Statement, what: str, options: Mapping[str, Any]) -> OnDataLoss | None:
    if options.get("on_data_loss") is None:
        return None
    chosen: OnDataLoss = choice(statement, what, "on_data_loss", options, "continue", OnDataLoss)
    return chosen


def _key(statement: Statement, what: str, key: object) -> tuple[str, ...] | None:
    if key is None:
        return None
    names = (key,) if isinstance(key, str) else key
    if (
        not isinstance(names, (list, tuple))
        or not names
        or not all(isinstance(name, str) and name for name in names)
        or len(set(names)) < len(names)
    ):
        raise mistake(
            statement,
            f"{what} has key={key!r}",
            remedy="write the names of result columns, each once, as in key=['window', 'topic']",
            option="key",
        )
    return tuple(names)


def _keep(statement: Statement, what: str, value: object, key: tuple[str, ...] | None) -> timedelta:
    keep = duration(statement, what, "keep", value)
    if key is None:
        raise mistake(
            statement,
            f"{what} has keep but no key, and only rows of a table expire",
            remedy="add key=[…], or leave keep out",
            option="keep",
        )
    if not keep:
        raise mistake(
            statement,
            f"{what} keeps its rows for no time",
            remedy="write keep='3 hours', or leave it out to keep them",
            option="keep",
        )
    return keep


def _query(statement: Statement, what: str, sql: object) -> SelectQuery:
    if not isinstance(sql, str):
        raise mistake(
            statement,
            f"{what} has sql={sql!r}" if sql is not None else f"{what} has no query",
            remedy="write sql='SELECT …', or put @app.view(…) above a function",
        )
    try:
        return parse_select(sql)
    except PipelineError as error:
        raise mistake(
            statement,
            f"{what}: {error.message}",
            remedy=error.remedy,
            option="sql",
            line=error.line or 1,
        ) from None


def _check_key(
    statement: Statement, what: str, key: tuple[str, ...] | None, query: SelectQuery
) -> None:
    for name in key or ():
        if query.columns is not None and name not in query.columns:
            raise mistake(
                statement,
                f"{what} has the key column {name!r}, which is not in its result",
                remedy=suggest(name, query.columns) or f"select it, as in … AS {name}",
                option="key",
            )


def _parameters(statement: Statement, what: str, function: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise mistake(
                statement,
                f"{what} has the parameter {parameter}, which names no input",
                remedy="write one parameter for each stream or view that it reads",
            )
    if not parameters:
        raise mistake(
            statement,
            f"{what} has no parameters, so it reads nothing",
            remedy="name what it reads, as in def "
            f"{getattr(function, '__name__', 'view')}(rsvps): …",
        )
    return tuple(parameters)


def _reads(
    statement: Statement, what: str, reads: object, inputs: tuple[str, ...]
) -> dict[str, Reading]:
    if not isinstance(reads, Mapping):
        raise mistake(
            statement,
            f"{what} has reads={reads!r}",
            remedy="write reads={'by_city': 'changes'} or reads={'by_city': 'reference'}",
            option="reads",
        )
    for name, reading in reads.items():
        if name not in inputs:
            raise mistake(
                statement,
                f"{what} says how it reads {name!r}, but does not read it",
                remedy=suggest(str(name), inputs),
                option="reads",
            )
        if reading not in get_args(Reading):
            raise mistake(
                statement,
                f"{what} reads {name!r} as {reading!r}",
                remedy="write 'changes' (each change is an event) or 'reference' (look rows up)",
                option="reads",
            )
    return dict(reads)
