"""A database of its own for the rows that one caller sees. Runs in the SQL process.

A caller's predicates and functions must not be evaluated on hidden rows: an error, or the time that
they take, would reveal them. DuckDB's optimizer may evaluate them in any order. So the visible rows
are copied into another database first, and the query runs there: nothing else is in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import duckdb

from millstream.store.sql.quoting import quote
from millstream.values.visibility import Visibility

_MAX_IDLE = 2  # as many as there are queries at once


class VisibleRows:
    """Databases for visible rows; an empty one is used again, because opening one takes 15 ms."""

    def __init__(self, connect: Callable[[], duckdb.DuckDBPyConnection]) -> None:
        self._connect = connect
        self._idle: list[duckdb.DuckDBPyConnection] = []

    @contextlib.contextmanager
    def database(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """An empty database within the block."""
        try:
            database = self._idle.pop()
        except IndexError:
            database = self._connect()
        try:
            yield database
            _empty(database)
        except BaseException:
            database.close()
            raise
        if len(self._idle) < _MAX_IDLE:
            self._idle.append(database)
        else:
            database.close()


def copy_visible(
    source: duckdb.DuckDBPyConnection,
    target: duckdb.DuckDBPyConnection,
    view: str,
    columns: Sequence[str],
    visibility: Visibility,
) -> None:
    """Copy what is visible of a view."""
    shown = [name for name in columns if name not in visibility.hidden]
    # With the default alias, a policy's "a"."b" could mean a column b of view a instead of a field.
    alias = _unused(columns)
    found = source.sql(
        f"SELECT {', '.join(map(quote, shown))} FROM store.{quote(view)} AS {quote(alias)} "
        f"WHERE {visibility.rows or 'TRUE'}"
    )
    incoming = found.to_arrow_table()
    target.register("incoming", incoming)
    target.execute(f"CREATE TABLE main.{quote(view)} AS SELECT * FROM incoming").fetchall()
    target.unregister("incoming")


def _unused(names: Iterable[str]) -> str:
    taken, name = {each.lower() for each in names}, "visible"
    while name in taken:
        name += "_"
    return name


def _empty(database: duckdb.DuckDBPyConnection) -> None:
    tables = database.execute("SELECT table_name FROM duckdb_tables()").fetchall()
    for (name,) in tables:
        database.execute(f"DROP TABLE main.{quote(name)}").fetchall()
