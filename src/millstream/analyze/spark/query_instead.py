"""The named query that sorts or ranks the rows of a view, for what Spark does not stream."""

from __future__ import annotations

import itertools

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from millstream.pipeline.model import View

_UNKNOWN = "…"
_LIMIT = 100  # rows, if the view's own limit is not known


def sorting_query(view: View) -> str:
    """The statement that declares a query with the view's first rows, in their order."""
    tree = _parse(view)
    order = tree.args.get("order") if tree else None
    ordered = [_by_column(each, tree) for each in order.expressions] if order and tree else []
    by = _UNKNOWN if None in ordered or not ordered else ", ".join(map(str, ordered))
    return _declare(
        view, "sorted", f"SELECT * FROM {view.name} ORDER BY {by} LIMIT :n", _limit(tree)
    )


def ranking_query(view: View) -> str:
    """The statement that declares a query with the view's rows and their numbers."""
    tree = _parse(view)
    window = tree.find(exp.Window) if tree else None
    over, name = "row_number() OVER (PARTITION BY … ORDER BY …)", "number"
    if window is not None:
        over = window.sql("duckdb")
        name = window.parent.alias if isinstance(window.parent, exp.Alias) else name
    return _declare(view, "ranked", f"SELECT *, {over} AS {name} FROM {view.name}", None)


def _declare(view: View, suffix: str, select: str, limit: int | None) -> str:
    name = f"{view.name}_{suffix}"
    if view.location.file.endswith(".sql"):
        parameters = "" if limit is None else f" (n = {limit})"
        return f"CREATE QUERY {name}{parameters} AS {select};"
    parameters = "" if limit is None else f", n={limit}"
    quote = '"""' if '"' in select else '"'
    return f'app.query("{name}", sql={quote}{select}{quote}{parameters})'


def _parse(view: View) -> exp.Query | None:
    """The view's SQL; None if it is a function."""
    if view.sql is None:
        return None
    try:
        tree = parse_one(view.sql, dialect="spark")
    except (SqlglotError, RecursionError):
        return None
    return tree if isinstance(tree, exp.Query) else None


def _limit(tree: exp.Query | None) -> int:
    limit = tree.args.get("limit") if tree else None
    number = limit.expression if limit is not None else None
    is_number = isinstance(number, exp.Literal) and number.name.isdigit()
    return int(number.name) if number is not None and is_number else _LIMIT


def _by_column(ordered: exp.Expr, tree: exp.Query) -> str | None:
    """The order by a column of the result; None if it is by something else."""
    by = ordered.this
    names = [each.output_name for each in tree.selects]
    if isinstance(by, exp.Literal) and by.name.isdigit() and 0 < int(by.name) <= len(names):
        name = names[int(by.name) - 1]
    elif isinstance(by, exp.Column) and (by.name in names or "*" in names):
        name = by.name
    else:
        named = zip((each.unalias() for each in tree.selects), names, strict=True)
        name = next(itertools.chain((n for e, n in named if e == by), [""]))
    written = exp.column(name).sql("duckdb") if name else None  # quoted if it is a keyword
    return f"{written} DESC" if written and ordered.args.get("desc") else written
