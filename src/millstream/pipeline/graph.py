"""Checks how streams, views and queries fit: inputs exist, no cycles, tables read as declared."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.errors import PipelineError
from millstream.pipeline.model import NamedQuery, Stream, View
from millstream.pipeline.view_sql import parse_select
from millstream.syntax.names import suggest


def check_graph(streams: Mapping[str, Stream], views: Mapping[str, View]) -> None:
    """PipelineError at the first view with a wrong input."""
    for view in views.values():
        _check_inputs(view, streams, views)
    in_order(views)
    for view in views.values():
        _check_reads(view, views)
        _check_aggregate(view)


def check_queries(
    queries: Mapping[str, NamedQuery], streams: Mapping[str, Stream], views: Mapping[str, View]
) -> None:
    """PipelineError at the first query that reads something else than views."""
    for query in queries.values():
        for name in query.views:
            if name in views:
                continue
            problem, remedy = "which is not a view", suggest(name, views)
            if name in streams:
                problem, remedy = "a stream", "make a view of what it needs from the stream"
            elif name in queries:
                problem, remedy = "a query", "write that query's SELECT into a WITH"
            raise _wrong(query, f"query {query.name!r} reads {name!r}, {problem}", remedy)


def in_order(views: Mapping[str, View]) -> list[View]:
    """The views, each after those that it reads; PipelineError shows a cycle."""
    done: dict[str, View] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            cycle = " → ".join((*path[path.index(name) :], name))
            raise _wrong(
                views[name],
                f"view {name!r} feeds itself: {cycle}",
                "let one of them read a stream instead",
            )
        if name in views and name not in done:
            for each in views[name].inputs:
                visit(each, (*path, name))
            done[name] = views[name]

    for name in views:
        visit(name, ())
    return list(done.values())


def _check_inputs(view: View, streams: Mapping[str, Stream], views: Mapping[str, View]) -> None:
    known = [*streams, *(name for name in views if name != view.name)]
    for name in view.inputs:
        if name == view.name:
            continue  # a cycle, which has its own error
        if name not in known:
            how = "has a parameter" if view.function else "reads"
            raise _wrong(
                view,
                f"view {view.name!r} {how} {name!r}, which is neither a stream nor a view",
                suggest(name, known) or "declare the stream with app.stream(…)",
            )


def _check_reads(view: View, views: Mapping[str, View]) -> None:
    """A view must say how it reads a table: its rows change, so they are not events."""
    for name in view.inputs:
        table = name in views and views[name].key is not None
        if table and name not in view.reads:
            raise _wrong(
                view,
                f"view {view.name!r} reads the table {name!r} as if its rows were events",
                f"say how: reads={{{name!r}: 'changes'}} reads each change of a row as an event, "
                f"reads={{{name!r}: 'reference'}} looks its rows up",
            )
        if not table and name in view.reads:
            kind = "a view without a key" if name in views else "a stream"
            raise _wrong(
                view,
                f"view {view.name!r} says how to read {name!r}, but rows of {kind} are events",
                f"leave {name!r} out of reads",
            )
        if table:
            _check_accumulation(view, views[name])


def _check_accumulation(view: View, table: View) -> None:
    """PipelineError if the view cannot use the rows that the table outputs."""
    match table.accumulation, view.reads[table.name]:
        case "retract", "changes":
            raise _wrong(
                view,
                f"view {view.name!r} reads the changes of {table.name!r}, "
                "which retracts old rows: they would count as events",
                f"read it as 'reference', or declare {table.name!r} with accumulation='discard'",
            )
        case "discard", "reference":
            raise _wrong(
                view,
                f"view {view.name!r} looks up rows of {table.name!r}, "
                "which contain only what is new",
                f"read its 'changes', or declare {table.name!r} without accumulation",
            )


def _check_aggregate(view: View) -> None:
    """A view that aggregates needs a key: a new row must replace an old one."""
    if view.sql is None or view.key is not None:
        return
    query = parse_select(view.sql)
    if query.aggregates:
        key = list(query.grouping) or ["…"]
        raise _wrong(
            view,
            f"view {view.name!r} aggregates but has no key, so no row replaces another",
            f"add key={key}"
            if query.grouping
            else "select the grouping columns and name them in key",
        )


def _wrong(at: View | NamedQuery, message: str, remedy: str) -> PipelineError:
    return PipelineError(message, remedy=remedy, file=at.location.file, line=at.location.line)
