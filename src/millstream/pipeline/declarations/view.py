"""Turns the declaration of a view into a `View`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, get_args

from millstream.pipeline.declarations.declaration import Declaration
from millstream.pipeline.declarations.policy import (
    LEDGER_ROWS,
    POLICY_OPTIONS,
    declare_ledger_policy,
    declare_policy,
)
from millstream.pipeline.declarations.view_output import OUTPUT_OPTIONS, declare_output
from millstream.pipeline.declarations.view_shedding import declare_shed
from millstream.pipeline.model import Mode, OnDataLoss, Reading, View
from millstream.pipeline.view_sql import SelectQuery, parse_select
from millstream.syntax.names import suggest
from millstream.syntax.source_location import Statement

VIEW_OPTIONS = (
    "key",
    "keep",
    "mode",
    "sql",
    "name",
    "reads",
    "description",
    "on_data_loss",
    *OUTPUT_OPTIONS,
    "shed",
    *POLICY_OPTIONS,
    LEDGER_ROWS,
)


def declare_view(
    statement: Statement,
    name: object,
    options: Mapping[str, Any],
    function: Callable[..., Any] | None = None,
) -> View:
    """The view that the user's call or statement declares, by a function or by SQL."""
    declared = Declaration.of(statement, "view", name, options, VIEW_OPTIONS)
    remedy = "write the names of result columns, each once, as in key=['window', 'topic']"
    key = declared.column_names("key", remedy) or None
    query = None
    if function is not None:
        inputs = _parameters(declared, function)
    else:
        query = _query(declared)
        inputs = query.inputs
        _check_key(declared, key, query)
    output = declare_output(declared, key, query)
    policy = declare_policy(declared, None if query is None else query.columns, key or ())
    return View(
        name=declared.name,
        inputs=inputs,
        key=key,
        keep=_keep(declared, key),
        mode=declared.choice("mode", "auto", Mode),
        description=declared.get("description") or inspect.getdoc(function) or "",
        function=function,
        sql=declared.get("sql"),
        location=statement.location,
        reads=_reads(declared, inputs),
        on_data_loss=_on_data_loss(declared),
        trigger=output.trigger,
        accumulation=output.accumulation,
        ledger=output.ledger,
        shed=declare_shed(declared, key, output),
        policy=policy,
        ledger_policy=declare_ledger_policy(declared, policy, key or (), output.ledger),
    )


def _on_data_loss(declared: Declaration) -> OnDataLoss | None:
    if declared.get("on_data_loss") is None:
        return None
    chosen: OnDataLoss = declared.choice("on_data_loss", "continue", OnDataLoss)
    return chosen


def _keep(declared: Declaration, key: tuple[str, ...] | None) -> timedelta | None:
    if declared.get("keep") is None:
        return None
    keep = declared.duration("keep", "")
    if key is None:
        problem = "has keep but no key, and only rows of a table expire"
        raise declared.mistake(problem, "add key=[…], or leave keep out", "keep")
    if not keep:
        remedy = "write keep='3 hours', or leave it out to keep them"
        raise declared.mistake("keeps its rows for no time", remedy, "keep")
    return keep


def _query(declared: Declaration) -> SelectQuery:
    sql = declared.get("sql")
    if not isinstance(sql, str):
        problem = f"has sql={sql!r}" if sql is not None else "has no query"
        remedy = "write sql='SELECT …', or put @app.view(…) above a function"
        raise declared.mistake(problem, remedy)
    return declared.parse("sql", parse_select, sql)


def _check_key(declared: Declaration, key: tuple[str, ...] | None, query: SelectQuery) -> None:
    for name in key or ():
        if query.columns is not None and name not in query.columns:
            problem = f"has the key column {name!r}, which is not in its result"
            remedy = suggest(name, query.columns) or f"select it, as in … AS {name}"
            raise declared.mistake(problem, remedy, "key")


def _parameters(declared: Declaration, function: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise declared.mistake(
                f"has the parameter {parameter}, which names no input",
                "write one parameter for each stream or view that it reads",
            )
    if not parameters:
        name = getattr(function, "__name__", "view")
        remedy = f"name what it reads, as in def {name}(rsvps): …"
        raise declared.mistake("has no parameters, so it reads nothing", remedy)
    return tuple(parameters)


def _reads(declared: Declaration, inputs: tuple[str, ...]) -> dict[str, Reading]:
    reads = declared.get("reads") or {}
    if not isinstance(reads, Mapping):
        remedy = "write reads={'by_city': 'changes'} or reads={'by_city': 'reference'}"
        raise declared.mistake(f"has reads={reads!r}", remedy, "reads")
    for name, reading in reads.items():
        if name not in inputs:
            problem = f"says how it reads {name!r}, but does not read it"
            raise declared.mistake(problem, suggest(str(name), inputs), "reads")
        if reading not in get_args(Reading):
            remedy = "write 'changes' (each change is an event) or 'reference' (look rows up)"
            raise declared.mistake(f"reads {name!r} as {reading!r}", remedy, "reads")
    return dict(reads)
