"""The views as DuckDB tables, for SQL over all of them; `millstream.store.sql` runs it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from millstream.audit import Column
from millstream.errors import QueryError
from millstream.store.guard import check
from millstream.store.types import duckdb_type, parse_type

# Before the doors are closed; each of them stays closed, since the last one locks the settings.
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


class Mirror:
    """Tables that are replaced in batches and read by clients' queries."""

    def __init__(self, memory: str, threads: int = 2) -> None:
        self._database = duckdb.connect(
            ":memory:", config={"memory_limit": memory, "threads": threads}
        )
        self._run("CREATE SCHEMA store")
        for statement in _LOCK:
            self._run(statement)
        self._tables: dict[str, tuple[bool, str]] = {}
        self._count = 0  # rows ever folded; numbers them, so that the oldest can be let go

    def close(self) -> None:
        self._database.close()

    def define(self, name: str, columns: Sequence[Column], keyed: bool) -> None:
        """Make the table of a view, empty."""
        types = {column.name: duckdb_type(parse_type(column.type)) for column in columns}
        struct = ", ".join(f"{_quote(column)} {type_}" for column, type_ in types.items())
        stored, shown = f"store.{_quote(name)}", _quote(name)
        self._run(f"DROP VIEW IF EXISTS main.{shown}")
        self._run(f"DROP TABLE IF EXISTS {stored}")
        self._run(f"CREATE TABLE {stored} (_key VARCHAR, _number BIGINT, {struct})")
        listed = ", ".join(map(_quote, types))
        self._run(f"CREATE VIEW main.{shown} AS SELECT {listed} FROM {stored}")
        structure = msgspec.json.encode(types).decode().replace("'", "''")
        self._tables[name] = (keyed, f"'{structure}'")

    def fold(self, name: str, keys: list[str], rows: list[str | None], newest: int) -> None:
        """Replace the rows of these keys; None is gone. Without key: append, and keep `newest`."""
        if name not in self._tables:
            return
        keyed, types = self._tables[name]
        stored = f"store.{_quote(name)}"
        incoming = pa.table(
            {
                "_key": pa.array(keys, pa.string()),
                "_row": pa.array(rows, pa.string()),
                "_number": pa.array(
                    range(self._count + 1, self._count + 1 + len(rows)), pa.int64()
                ),
            }
        )
        self._database.register("incoming", incoming)
        try:
            self._run("BEGIN")
            if keyed:
                self._run(f"DELETE FROM {stored} WHERE _key IN (SELECT _key FROM incoming)")
            else:
                self._run(
                    f"DELETE FROM {stored} WHERE _number <= {self._count + len(rows) - newest}"
                )
            self._run(
                # Lenient: a value that is not of the described type is NULL, and hidden columns are
                # left out.
                f"INSERT INTO {stored} SELECT _key, _number, "
                f"unnest(json_transform(_row, {types})) FROM incoming WHERE _row IS NOT NULL"
            )
            self._run("COMMIT")
            self._count += len(rows)
        except BaseException:
            self._run("ROLLBACK")
            raise
        finally:
            self._database.unregister("incoming")

    def query(self, sql: str, limit: int, seconds: float) -> dict[str, Any]:
        """The first `limit` rows of a SELECT; QueryError if it is wrong, forbidden or too slow."""
        began = time.perf_counter()
        session = self._database.cursor()
        timer = threading.Timer(seconds, session.interrupt)
        timer.daemon = True
        timer.start()
        try:
            parsed = session.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()[0][0]
            check(parsed.encode(), self._tables)
            # The line's end closes a comment that the query may end with.
            text = sql.strip().rstrip(";")
            found = session.sql(f"SELECT * FROM ({text}\n) LIMIT {limit + 1}")
            types = [str(type_) for type_ in found.types]
            table = found.to_arrow_table()
        except duckdb.InterruptException:
            raise QueryError(
                f"the query took longer than {seconds:g} s", remedy="ask for less"
            ) from None
        except (duckdb.OutOfMemoryException, MemoryError):
            raise QueryError("the query needs too much memory", remedy="ask for less") from None
        except duckdb.Error as error:
            raise QueryError(f"cannot answer the query: {_first_lines(error)}") from None
        finally:
            timer.cancel()
            session.close()
        rows = [list(row.values()) for row in _rows(table.slice(0, limit))]
        return {
            "columns": [
                {"name": name, "type": type_.lower()}
                for name, type_ in zip(table.column_names, types, strict=True)
            ],
            "rows": rows,
            "truncated": table.num_rows > limit,
            "elapsed_ms": round((time.perf_counter() - began) * 1000, 3),
        }

    def _run(self, statement: str) -> None:
        self._database.execute(statement).fetchall()


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    # Columns may share a name in SQL, in a dict they may not.
    numbered = table.rename_columns([str(i) for i in range(table.num_columns)])
    return [{k: _plain(v) for k, v in row.items()} for row in numbered.to_pylist()]


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
            return value.strftime("%Y-%m-%dT%H:%M:%S.%f") + ("Z" if value.tzinfo else "")
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


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _first_lines(error: Exception) -> str:
    return " ".join(str(error).split("\n\n")[0].split())[:500]


_NO_JSON = {math.inf: "Infinity", -math.inf: "-Infinity"}  # as Spark writes them too
encode_result = msgspec.json.Encoder(decimal_format="number").encode
