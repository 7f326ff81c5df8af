"""Which SQL a client may run: one SELECT over the views, with functions that only compute.

DuckDB's own parser says what a text means, so there is no second opinion to slip between. This is
one wall of several: the database has no access to files or network, its settings are locked, and it
runs in a process of its own (see `millstream.store.sql`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from millstream.errors import QueryError
from millstream.names import suggest

_TABLE_FUNCTIONS = {"unnest", "range", "generate_series"}
# What tells about the server or the session, runs text as SQL, or writes somewhere.
_FORBIDDEN = {
    "current_setting", "getvariable", "getenv", "current_query", "current_user", "current_role",
    "current_connection_id", "current_query_id", "current_transaction_id", "txid_current",
    "session_user", "user", "nextval", "currval", "setseed", "write_log", "query", "query_table",
    "json_execute_serialized_sql", "json_serialize_sql", "json_deserialize_sql",
    "json_serialize_plan", "which_secret", "version", "get_block_size", "create_sort_key",
    "parse_duckdb_log_message", "in_search_path", "getpid", "sleep", "sleep_ms",
}  # fmt: skip
_FORBIDDEN_PREFIXES = (
    "__internal",
    "duckdb_",
    "pragma_",
    "pg_",
    "inet_",
    "has_",
    "read_",
    "parquet_",
)


def check(parsed: bytes, views: Collection[str]) -> None:
    """QueryError unless `parsed`, DuckDB's serialized syntax tree, is a query that may run."""
    tree = msgspec.json.decode(parsed)
    if tree.get("error"):
        message = str(tree.get("error_message") or "it cannot be read")
        if "Only SELECT" in message:
            raise QueryError(
                "only SELECT is answered", remedy="views are kept by the pipeline; see its file"
            )
        raise QueryError(f"cannot read the query: {message}")
    statements = tree.get("statements") or []
    if len(statements) != 1:
        raise QueryError(f"there are {len(statements)} statements", remedy="send one SELECT")
    nodes = list(_nodes(statements[0]))
    named = {name for node in nodes for name in _named(node)}
    for node in nodes:
        _check_node(node, views, named)


def _check_node(node: dict[str, Any], views: Collection[str], named: Collection[str]) -> None:
    match node.get("type"):
        case "BASE_TABLE":
            _check_table(node, views, named)
        case "TABLE_FUNCTION":
            function = node.get("function") or {}
            name = str(function.get("function_name", "")).lower()
            if name not in _TABLE_FUNCTIONS:
                raise QueryError(
                    f"cannot read from {name or 'that'}()",
                    remedy=f"a query reads views: {', '.join(views)}",
                )
        case "SHOW_REF" if node.get("query") is None:
            raise QueryError("only SELECT is answered", remedy="GET /v1/views lists the views")
        case "PARAMETER" | "VALUE_PARAMETER":
            raise QueryError("there are no parameters", remedy="write the values into the query")
    name = str(node.get("function_name", "")).lower()
    if name in _FORBIDDEN or name.startswith(_FORBIDDEN_PREFIXES):
        raise QueryError(f"the function {name} is not available")


def _check_table(node: dict[str, Any], views: Collection[str], named: Collection[str]) -> None:
    name = str(node.get("table_name", ""))
    place = (node.get("catalog_name") or "", node.get("schema_name") or "")
    if place in (("", ""), ("", "main")) and name.lower() in {view.lower() for view in views}:
        return
    if place == ("", "") and name.lower() in named:
        return
    raise QueryError(f"there is no view {name[:100]!r}", remedy=suggest(name, views))


def _named(node: dict[str, Any]) -> Iterator[str]:
    """The names that WITH gives."""
    cte_map = node.get("cte_map")
    if isinstance(cte_map, dict):
        for entry in cte_map.get("map") or []:
            yield str(entry.get("key", "")).lower()
    if node.get("cte_name"):
        yield str(node["cte_name"]).lower()


def _nodes(tree: object) -> Iterator[dict[str, Any]]:
    pending = [tree]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            yield part
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)
