"""The views as DuckDB tables. Runs in the SQL process."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from millstream.errors import QueryError
from millstream.schema.column_types import duckdb_type, parse_type
from millstream.store.sql.query_check import CheckedQuery, check_query
from millstream.store.sql.quoting import quote
from millstream.store.sql.visible_rows import VisibleRows, copy_visible
from millstream.values.view_description import ViewColumn
from millstream.values.visibility import SEES_ALL, Visibility

# Queries cannot change these settings, because the last one locks them.
_LOCK = (
    "SET TimeZone='UTC'",
    "SET temp_directory=''",
    "SET autoload_known_extensions=false",
    "SET autoinstall_known_extensions=false",
    "SET allow_community_extensions=false",
    "SET allow_unsigned_extensions=false",
    "SET python_enable_replacements=false",
    "SET enable_external_access=false",
    "SET lock_configuration=true",
)

_OF_VALUES = (duckdb.DataError, duckdb.InvalidInputException)


class QueryTimeout(QueryError):
    """A query took too long."""


class QueryOutOfMemory(QueryError):
    """A query needs more memory than there is."""


class UnsuitableValue(QueryError):
    """A query failed at a value of some row, such as a text that is no number."""


@dataclass(slots=True)
class _StoredTable:
    """The table of one view."""

    keyed: bool
    columns: tuple[str, ...]
    types: str  # of its columns, in the format of json_transform
    count: int = 0  # rows ever inserted; numbers them, so that the oldest can be deleted


class SqlTables:
    """Tables that are changed in batches and read by clients' queries.

    A batch is one transaction, even if it takes several calls of `update`: no query sees a part.
    """

    def __init__(self, memory: str, threads: int = 2) -> None:
        self._database = _connect(memory, threads)
        self._run("CREATE SCHEMA store")
        _lock(self._database)
        self._visible_rows = VisibleRows(lambda: _lock(_connect(memory, 1)))
        self._tables: dict[str, _StoredTable] = {}
        self._changing: tuple[str, _StoredTable] | None = None  # while a transaction is open
        self._broken: dict[str, str] = {}  # views that have no table, and why

    def close(self) -> None:
        self._database.close()

    def create(self, name: str, columns: Sequence[ViewColumn], keyed: bool) -> None:
        """Begin a batch with an empty table for the view."""
        types = {column.name: duckdb_type(parse_type(column.type)) for column in columns}
        structure = msgspec.json.encode(types).decode().replace("'", "''")
        with self._batch(name, _StoredTable(keyed, tuple(types), f"'{structure}'")):
            self._drop(name)
            struct = ", ".join(f"{quote(column)} {type_}" for column, type_ in types.items())
            stored, shown = f"store.{quote(name)}", quote(name)
            self._run(f"CREATE TABLE {stored} (_key VARCHAR, _number BIGINT, {struct})")
            listed = ", ".join(map(quote, types))
            self._run(f"CREATE VIEW main.{shown} AS SELECT {listed} FROM {stored}")

    def update(
        self,
        name: str,
        keys: list[str],
        rows: list[str | None],
        newest: int,
        last: bool = True,
    ) -> None:
        """Replace the rows of these keys; None deletes. Without key: append, and keep `newest`.

        `last` ends the batch, so that queries see it.
        """
        changing = self._changing
        held = changing[1] if changing and changing[0] == name else self._tables.get(name)
        if held is None:
            return
        with self._batch(name, held):
            self._write(f"store.{quote(name)}", held, _incoming(keys, rows, held.count), newest)
            held.count += len(rows)
            if last:
                self._run("COMMIT")
                self._tables[name], self._changing = held, None
                self._broken.pop(name, None)

    def _write(self, stored: str, held: _StoredTable, incoming: pa.Table, newest: int) -> None:
        self._database.register("incoming", incoming)
        if held.keyed:
            self._run(f"DELETE FROM {stored} WHERE _key IN (SELECT _key FROM incoming)")
        self._run(
            # json_transform makes values of other types NULL, and drops hidden columns.
            f"INSERT INTO {stored} SELECT _key, _number, "
            f"unnest(json_transform(_row, {held.types})) FROM incoming WHERE _row IS NOT NULL"
        )
        if not held.keyed:
            oldest = held.count + incoming.num_rows - newest
            self._run(f"DELETE FROM {stored} WHERE _number <= {oldest}")
        self._database.unregister("incoming")

    @contextlib.contextmanager
    def _batch(self, name: str, table: _StoredTable) -> Iterator[None]:
        """Work in the batch of that table; if it fails, the view has no table."""
        if self._changing is None or self._changing[1] is not table:
            if self._changing is not None:  # it was not ended
                self._run("ROLLBACK")
                self._tables.pop(self._changing[0], None)
            self._run("BEGIN")
            self._changing = (name, table)
        try:
            yield
        except Exception as error:
            self._changing = None
            self._run("ROLLBACK")
            self._database.unregister("incoming")
            self._tables.pop(name, None)
            self._drop(name)
            if is_out_of_memory(error):
                raise
            self._broken[name] = _first_lines(error)
            raise QueryError(
                f"cannot create an SQL table for view {name}: {_first_lines(error)}"
            ) from None

    def _drop(self, name: str) -> None:
        self._run(f"DROP VIEW IF EXISTS main.{quote(name)}")
        self._run(f"DROP TABLE IF EXISTS store.{quote(name)}")

    def query(
        self,
        sql: str,
        limit: int,
        seconds: float,
        max_bytes: int,
        *,
        parameters: Mapping[str, Any] | None = None,
        visible: Mapping[str, Visibility] | None = None,
    ) -> tuple[bytes, CheckedQuery]:
        """The first `limit` rows of a SELECT, as JSON; QueryError if it is wrong or too large.

        `parameters`: values for `$name`.
        `visible`: the views that exist for the caller, and what it sees of each. None: everything.
        """
        given = parameters or {}
        began = time.perf_counter()
        session = self._database.cursor()
        alarm = _Alarm(session)
        timer = threading.Timer(seconds, alarm.ring)
        timer.daemon = True
        try:
            timer.start()
            session.begin()  # so that checking and answering see the same tables
            checked, read = self._check(session, sql, given, visible)
            hidden = {name: seen for name, seen in read.items() if seen.is_restricted}
            if not hidden:
                table, types = _select(session, sql, limit, given)
            else:
                with self._visible_rows.database() as database:
                    alarm.watch(database)
                    for name, seen in read.items():
                        columns = self._tables[name].columns
                        copy_visible(session, database, name, columns, seen)
                    table, types = _select(database, sql, limit, given)
        except duckdb.InterruptException:
            raise QueryTimeout(
                f"the query took longer than {seconds:g} s", remedy="ask for less"
            ) from None
        except duckdb.OutOfMemoryException:
            raise QueryOutOfMemory(
                "the query needs too much memory", remedy="ask for less"
            ) from None
        except duckdb.Error as error:
            kind = UnsuitableValue if isinstance(error, _OF_VALUES) else QueryError
            raise kind(f"cannot answer the query: {_first_lines(error)}") from None
        finally:
            timer.cancel()
            session.close()
        # The server holds the answer in memory more than once, so its size is limited.
        _check_size(table.nbytes // 4, max_bytes)  # eight bytes of Arrow are at least "0," in JSON
        answer = _encode_answer(table, types, limit, began)
        _check_size(len(answer), max_bytes)
        return answer, checked

    def _check(
        self,
        session: duckdb.DuckDBPyConnection,
        sql: str,
        parameters: Mapping[str, Any],
        visible: Mapping[str, Visibility] | None,
    ) -> tuple[CheckedQuery, dict[str, Visibility]]:
        """What is visible of the views that the query reads; QueryError if it is wrong."""
        known = dict.fromkeys(self._tables, SEES_ALL)
        broken = self._broken
        if visible is not None:
            known = {name: visible[name] for name in known if name in visible}
            # The reason can name columns.
            broken = {
                name: "it has no table" if visible[name].is_restricted else reason
                for name, reason in broken.items()
                if name in visible
            }
        parsed = session.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()[0][0]
        checked = check_query(parsed.encode(), known, broken, parameters)
        return checked, {name: known[name] for name in checked.views}

    def _run(self, statement: str) -> None:
        self._database.execute(statement).fetchall()


class _Alarm:
    """Interrupts a query that takes too long, in whichever database it runs."""

    def __init__(self, *databases: duckdb.DuckDBPyConnection) -> None:
        self._databases = [*databases]
        self._has_rung = False
        self._lock = threading.Lock()

    def watch(self, database: duckdb.DuckDBPyConnection) -> None:
        with self._lock:
            self._databases.append(database)
            if self._has_rung:
                raise duckdb.InterruptException("INTERRUPT Error: Interrupted!")

    def ring(self) -> None:
        with self._lock:
            self._has_rung = True
            for database in self._databases:
                database.interrupt()


def _connect(memory: str, threads: int) -> duckdb.DuckDBPyConnection:
    return duckdb.connect(":memory:", config={"memory_limit": memory, "threads": threads})


def _lock(database: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    for statement in _LOCK:
        database.execute(statement).fetchall()
    return database


def _select(
    database: duckdb.DuckDBPyConnection, sql: str, limit: int, parameters: Mapping[str, Any]
) -> tuple[pa.Table, list[str]]:
    """The first rows of a SELECT, one more than `limit`, and the types of its columns."""
    # The line break ends a comment at the end of the query.
    text = sql.strip().rstrip(";")
    wrapped = f"SELECT * FROM ({text}\n) LIMIT {limit + 1}"
    found = database.sql(wrapped, params=parameters or None)
    types = [str(type_) for type_ in found.types]
    return found.to_arrow_table(), types


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory was lacking; a thread that cannot start is such a case."""
    if isinstance(error, duckdb.OutOfMemoryException | MemoryError | QueryOutOfMemory):
        return True
    return any(words in str(error) for words in ("bad_alloc", "bad allocation", "new thread"))


def _incoming(keys: list[str], rows: list[str | None], count: int) -> pa.Table:
    return pa.table(
        {
            "_key": pa.array(keys, pa.string()),
            "_row": pa.array(rows, pa.string()),
            "_number": pa.array(range(count + 1, count + 1 + len(rows)), pa.int64()),
        }
    )


def _encode_answer(table: pa.Table, types: list[str], limit: int, began: float) -> bytes:
    answer = {
        "columns": [
            {"name": name, "type": type_.lower()}
            for name, type_ in zip(table.column_names, types, strict=True)
        ],
        "rows": _rows(table.slice(0, limit)),
        "truncated": table.num_rows > limit,
        "elapsed_ms": round((time.perf_counter() - began) * 1000, 3),
    }
    return _encode(answer)


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise QueryError(
            f"the answer has {size} bytes, more than {limit}",
            remedy="ask for fewer rows or columns, or raise serve.query_bytes",
        )


def _rows(table: pa.Table) -> list[list[Any]]:
    # Columns may have the same name in SQL, but not in a dict.
    numbered = table.rename_columns([str(i) for i in range(table.num_columns)])
    try:
        rows = numbered.to_pylist(maps_as_pydicts="lossy")  # DuckDB's maps have each key once
    except TypeError:  # keys that are structs or lists
        rows = numbered.to_pylist()
    return [[_plain(value) for value in row.values()] for row in rows]


def _plain(value: Any) -> Any:
    """A value as our JSON writes it."""
    match value:
        case bool() | int() | str() | None:
            return value
        case float():
            return value if math.isfinite(value) else _NO_JSON.get(value, "NaN")
        case Decimal():
            return int(value) if value == value.to_integral_value() else value
        case datetime():
            moment = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return moment + ("Z" if value.tzinfo else "")
        case date() | timedelta():
            return str(value)
        case dict():
            return {str(k): _plain(v) for k, v in value.items()}
        case list() | tuple():
            if value and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
                return {str(k): _plain(v) for k, v in value}
            return [_plain(item) for item in value]
        case bytes():
            return value.hex()
    return str(value)


def _first_lines(error: Exception) -> str:
    return " ".join(str(error).split("\n\n")[0].split())[:500]


_NO_JSON = {math.inf: "Infinity", -math.inf: "-Infinity"}  # as Spark writes them too
_encode = msgspec.json.Encoder(decimal_format="number").encode
