"""A model in plain Python: rows with marks, policies, callers, and who may see which mark.

Every value that only some callers may see is a mark, a text that occurs nowhere else. So a search
for marks in the bytes that a caller received finds each leak, whatever the message looks like.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from millstream import App

Row = dict[str, Any]
Claims = dict[str, Any]
RowPolicy = tuple[str, Callable[[Row, Claims], bool]]

SECRET = "zq_card"  # a hidden column; its name is a mark too
COLUMNS = {
    "id": "string",
    "tenant": "string",
    "level": "bigint",
    "open": "boolean",
    "public": "string",
    SECRET: "string",
    "n": "bigint",
}
VIEW, FEED, STREAM = "orders_now", "feed", "orders"
WHOLE = "whole"  # the query that shows the view as it is
QUERIES = {
    WHOLE: f"SELECT * FROM {VIEW}",
    "hidden_column": f"SELECT id, {SECRET} FROM {VIEW} ORDER BY {SECRET}",
    "joined": f"SELECT v.id, count(*) AS n, max(f.public) AS public FROM {VIEW} v"
    f" JOIN {FEED} f USING (tenant) GROUP BY v.id",
    "failing": f"SELECT error(public || id) AS x FROM {VIEW}",
}

# A policy in SQL, and what it means.
POLICIES: list[RowPolicy] = [
    ("tenant = caller.tenant", lambda row, c: _equal(row["tenant"], c.get("tenant"))),
    (
        "tenant = caller.tenant OR caller.role = 'support'",
        lambda row, c: _equal(row["tenant"], c.get("tenant")) or c.get("role") == "support",
    ),
    (
        "tenant IN (caller.groups)",
        lambda row, c: row["tenant"] is not None and row["tenant"] in _listed(c.get("groups")),
    ),
    ("level <= caller.level", lambda row, c: _ordered(row["level"], c.get("level"))),
    (
        "open AND NOT (tenant = caller.tenant)",
        lambda row, c: (
            row["open"] is True
            and row["tenant"] is not None
            and isinstance(c.get("tenant"), str)  # a claim of another type is NULL
            and row["tenant"] != c["tenant"]
        ),
    ),
    (
        "tenant IS NULL OR tenant = caller.tenant",
        lambda row, c: row["tenant"] is None or _equal(row["tenant"], c.get("tenant")),
    ),
    ("id = caller.prefix OR ends_with(id, '2key')", lambda row, c: row["id"].endswith("2key")),
    ("starts_with(id, caller.prefix)", lambda row, c: _starts(row["id"], c.get("prefix"))),
]
HIDE: list[tuple[str, Callable[[Claims], bool]]] = [
    ("caller.role = 'billing'", lambda c: c.get("role") == "billing"),
    ("caller.level > 1", lambda c: c.get("level", 0) > 1),
    ("caller.role IN ('support', 'billing')", lambda c: c.get("role") in ("support", "billing")),
]


def _listed(claim: list[str] | str | None) -> list[str]:
    return [claim] if isinstance(claim, str) else claim or []


def _equal(value: object, claim: object) -> bool:
    return value is not None and value == claim


def _ordered(value: int | None, claim: int | None) -> bool:
    return value is not None and claim is not None and value <= claim


def _starts(value: str, claim: str | None) -> bool:
    return claim is not None and value.startswith(claim)


@dataclass
class World:
    """What was written, and what each caller may know of it."""

    rows_policies: dict[str, RowPolicy]  # of the view, the view without key, and the stream
    hide_policy: tuple[str, Callable[[Claims], bool]]
    callers: dict[str, Claims]
    table: dict[str, Row] = field(default_factory=dict)  # by the key as JSON
    feed: list[Row] = field(default_factory=list)
    ledger: list[Row] = field(default_factory=list)
    marks: set[str] = field(default_factory=set)
    allowed: dict[str, set[str]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.marks.add(SECRET)
        self.allowed = {
            name: {SECRET} if self.hide_policy[1](claims) else set()
            for name, claims in self.callers.items()
        }

    def declare(self, name: str) -> App:
        app, hide = App(name), {SECRET: self.hide_policy[0]}
        rows = {target: sql for target, (sql, _) in self.rows_policies.items()}
        schema = ", ".join(f"{column} {type_}" for column, type_ in COLUMNS.items())
        select = f"SELECT {', '.join(COLUMNS)} FROM {STREAM}"
        app.stream(STREAM, schema=schema, rows=rows[STREAM], hide=hide)
        app.view(
            VIEW,
            key=["id"],
            sql=select,
            rows=rows[VIEW],
            hide=hide,
            ledger=["n"],
            ledger_rows="starts_with(key.id, caller.prefix)",
        )
        app.view(FEED, sql=select, rows=rows[FEED], hide=hide)
        for query, sql in QUERIES.items():
            app.query(query, sql=sql, key=["id"] if query == WHOLE else None)
        return app

    def sees(self, name: str, target: str, row: Row) -> bool:
        return self.rows_policies[target][1](row, self.callers[name])

    def shown(self, name: str, row: Row) -> Row:
        """The row as the caller sees it."""
        if self.hide_policy[1](self.callers[name]):
            return row
        return {column: value for column, value in row.items() if column != SECRET}

    def visible_table(self, name: str) -> dict[str, Row]:
        rows = self.table.items()
        return {k: self.shown(name, row) for k, row in rows if self.sees(name, VIEW, row)}

    def visible_feed(self, name: str) -> list[Row]:
        return [self.shown(name, row) for row in self.feed if self.sees(name, FEED, row)]

    def visible_entries(self, name: str) -> list[str]:
        prefix = self.callers[name].get("prefix")
        return [entry["id"] for entry in self.ledger if _starts(entry["key"][0], prefix)]

    def new_row(
        self, target: str, id_: str, tenant: str | None, level: int | None, is_open: bool
    ) -> Row:
        """A row with marks, which the callers who see it may know from now on."""
        number = next(self._numbers)
        row: Row = {
            "id": id_,
            "tenant": tenant,
            "level": level,
            "open": is_open,
            "public": f"zpub{number:05}z",
            SECRET: f"zsec{number:05}z",
            "n": 900_000_000 + number,
        }
        self.marks |= {id_, row["public"], row[SECRET], str(row["n"])}
        for name in self.callers:
            if self.sees(name, target, row):
                shown = self.shown(name, row)
                self.allowed[name] |= {str(shown[column]) for column in ("id", "public", "n")}
                self.allowed[name] |= {shown[SECRET]} & self.marks if SECRET in shown else set()
        return row

    def new_entry(self, id_: str) -> Row:
        number = next(self._numbers)
        entry: Row = {
            "id": f"zent{number:05}z",
            "key": [id_],
            "kind": "assertion",
            "amounts": {"n": 800_000_000 + number},
            "reason": [],
            "at": "2026-11-18T12:00:00.000000Z",
        }
        own = {entry["id"], id_, str(entry["amounts"]["n"])}
        self.marks |= own
        for name, claims in self.callers.items():
            if _starts(id_, claims.get("prefix")):
                self.allowed[name] |= own
        self.ledger.append(entry)
        return entry

    def leaks(self, name: str, received: bytes, asked: str) -> list[str]:
        """Marks in what the caller received that it may not know, and did not send itself."""
        forbidden = self.marks - self.allowed[name]
        return [mark for mark in forbidden if mark.encode() in received and mark not in asked]


def key_of(id_: str) -> str:
    return json.dumps([id_])
