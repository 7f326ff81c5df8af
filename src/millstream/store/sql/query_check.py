"""Checks clients' SQL: one SELECT over the views, with functions that only compute.

The check uses the syntax tree of DuckDB's own parser, so that both read the text in the same way.
This is one protection of several: the database has no access to files or network, its settings are
locked, and it runs in a process of its own (see `millstream.store.sql.service`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from millstream.errors import QueryError
from millstream.syntax.names import suggest

_TABLE_FUNCTIONS = {"unnest", "range", "generate_series"}
# Functions that show the server or the session, run text as SQL, or write.
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
# Tables of DuckDB that need no schema in their name. No CTE may have such a name, in case DuckDB's
# scope of a CTE is smaller than ours.
_CATALOGUE_PREFIXES = ("duckdb_", "pg_", "pragma_", "sqlite_")
# Functions whose answer changes although no view does. Some are written without parentheses.
_VOLATILE_WORDS = {
    "current_date", "current_time", "current_timestamp", "localtime", "localtimestamp",
}  # fmt: skip
_VOLATILE = _VOLATILE_WORDS | {
    "now", "today", "age", "transaction_timestamp", "get_current_timestamp", "get_current_time",
    "current_localtime", "current_localtimestamp", "random", "uuid", "gen_random_uuid", "uuidv4",
    "uuidv7",
}  # fmt: skip
_Names = frozenset[str]


@dataclass(frozen=True, slots=True)
class CheckedQuery:
    """What the syntax tree of a query that may run tells."""

    views: frozenset[str]  # that it reads, and perhaps more: a CTE may have the name of a view
    ordered: bool  # it says in which order its rows come
    volatile: bool  # its answer can change although no view does: it uses the time, or chance


def check_query(
    parsed: bytes,
    views: Collection[str],
    broken: Mapping[str, str] | None = None,
    parameters: Collection[str] = (),
) -> CheckedQuery:
    """QueryError unless `parsed`, DuckDB's serialized syntax tree, is a query that may run.

    `broken`: views that cannot be queried, and why. `parameters`: those that have a value.
    """
    tree = msgspec.json.decode(parsed)
    if tree.get("error"):
        message = str(tree.get("error_message") or "it cannot be read")
        if "Only SELECT" in message:
            raise QueryError("only SELECT is answered", remedy="the pipeline writes the views")
        raise QueryError(f"cannot read the query: {message}")
    statements = tree.get("statements") or []
    if len(statements) != 1:
        raise QueryError(f"there are {len(statements)} statements", remedy="send one SELECT")
    read: set[str] = set()
    volatile = False
    by_lower = {view.lower(): view for view in views}
    for node, named in _nodes(statements[0]):
        if node.get("type") == "BASE_TABLE":
            view = _check_table(node, by_lower, named, broken or {})
            read |= {view} - {""}
        else:
            _check_node(node, views, parameters)
            volatile = volatile or _is_volatile(node)
    return CheckedQuery(frozenset(read), _is_ordered(statements[0]), volatile)


def _is_volatile(node: dict[str, Any]) -> bool:
    if node.get("sample"):
        return True
    if node.get("type") == "COLUMN_REF":  # CURRENT_DATE is a column until DuckDB binds it
        names = node.get("column_names") or [""]
        return str(names[-1]).lower() in _VOLATILE_WORDS
    return str(node.get("function_name", "")).lower() in _VOLATILE


def _is_ordered(statement: dict[str, Any]) -> bool:
    modifiers = (statement.get("node") or {}).get("modifiers") or []
    return any(each.get("type") == "ORDER_MODIFIER" for each in modifiers)


def _check_node(node: dict[str, Any], views: Collection[str], parameters: Collection[str]) -> None:
    match node.get("type"):
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
        case "PARAMETER" | "VALUE_PARAMETER" if node.get("identifier") not in parameters:
            raise QueryError("there are no parameters", remedy="write the values into the query")
    name = str(node.get("function_name", "")).lower()
    if name in _FORBIDDEN or name.startswith(_FORBIDDEN_PREFIXES):
        raise QueryError(f"the function {name} is not available")


def _check_table(
    node: dict[str, Any], views: Mapping[str, str], named: _Names, broken: Mapping[str, str]
) -> str:
    """The view that the node reads; empty if it reads a CTE."""
    name = str(node.get("table_name", ""))
    place = (node.get("catalog_name") or "", node.get("schema_name") or "")
    # A CTE may have the name of a view; the view then counts as read too, which does no harm.
    if place in (("", ""), ("", "main")) and name.lower() in views:
        return views[name.lower()]
    if place == ("", "") and name.lower() in named:
        return ""
    if name in broken:
        raise QueryError(f"view {name} cannot be queried: {broken[name]}")
    raise QueryError(f"there is no view {name[:100]!r}", remedy=suggest(name, views.values()))


def _nodes(tree: object) -> Iterator[tuple[dict[str, Any], _Names]]:
    """Every node of the syntax tree, with the names of the CTEs that it can use."""
    pending: list[tuple[object, _Names]] = [(tree, frozenset())]
    while pending:
        part, named = pending.pop()
        if isinstance(part, list):
            pending += [(item, named) for item in part]
        elif isinstance(part, dict):
            yield part, named
            pending += _children(part, named)


def _children(node: dict[str, Any], named: _Names) -> Iterator[tuple[object, _Names]]:
    """A node's parts. A CTE can be used by the CTEs after it and by its query.

    A recursive CTE can use itself, but only in the part that is repeated: elsewhere the name means
    a table.
    """
    rest = dict(node)
    cte_map = rest.pop("cte_map", None)
    if isinstance(cte_map, dict):
        for entry in cte_map.get("map") or []:
            yield entry.get("value"), named
            named |= {_cte_name(entry.get("key"))}
    if rest.get("type") == "RECURSIVE_CTE_NODE":
        yield rest.pop("left", None), named
        named |= {_cte_name(rest.get("cte_name"))}
    for value in rest.values():
        yield value, named


def _cte_name(name: object) -> str:
    text = str(name or "").lower()
    if text.startswith(_CATALOGUE_PREFIXES):
        raise QueryError(f"WITH cannot name a query {text[:100]!r}", remedy="choose another name")
    return text
