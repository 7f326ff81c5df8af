"""The pipeline's named queries, as this server offers them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from millstream.errors import LogError, QueryError
from millstream.pipeline.model import NamedQuery, ParameterValue
from millstream.serve.views.encoding import encode
from millstream.serve.views.served_view import ServedView
from millstream.store.sql.query_check import CheckedQuery
from millstream.store.sql.service import SqlAnswer, SqlService
from millstream.store.views.ring import ViewChange
from millstream.syntax.names import suggest
from millstream.values.visibility import SEES_NOTHING, Visibility
from millstream.web.auth.caller import Caller
from millstream.web.problem import Problem

_log = logging.getLogger(__name__)
_SETTLE_SECONDS = 0.1  # several views are described at the same time
_RETRY_SECONDS = 5.0
_CONCEALED = "the query is wrong, or reads a column that you do not see"


class ServedQuery:
    """A named query and what DuckDB says about it: its columns, or why it cannot run."""

    def __init__(self, declared: NamedQuery, views: Mapping[str, ServedView]) -> None:
        self.declared = declared
        self.views = [views[name] for name in declared.views]
        self.columns: list[dict[str, str]] = []
        self.checked: CheckedQuery | None = None  # None until DuckDB has checked it
        self.error = ""

    @property
    def name(self) -> str:
        return self.declared.name

    @property
    def defaults(self) -> dict[str, ParameterValue]:
        return {each.name: each.default for each in self.declared.parameters}

    def check_described(self) -> None:
        """LogError if the columns of a view under the query are not known yet."""
        if (missing := self.undescribed) is not None:
            raise LogError(
                f"query {self.name} reads view {missing}, which is not described yet",
                remedy="start analyze, or try again in a moment",
            )

    @property
    def undescribed(self) -> str | None:
        """A view under the query whose columns are not known yet."""
        return next((view.name for view in self.views if not view.columns), None)

    def note(self, found: SqlAnswer | QueryError) -> None:
        """Store what DuckDB says."""
        if isinstance(found, SqlAnswer):
            self.columns = msgspec.json.decode(found.body)["columns"]
            self.checked, self.error = found.checked, ""
            return
        if self.error != str(found):
            _log.error("query %s cannot run: %s", self.name, found)
        self.columns, self.checked, self.error = [], None, str(found)

    def tag(
        self, values: Mapping[str, ParameterValue], visible: Mapping[str, Visibility], media: str
    ) -> bytes | None:
        """The ETag of an answer from now on in that format; None: it changes although no view does.

        Another visibility or format has another tag.
        """
        if self.checked is None or self.checked.volatile:
            return None
        seen = [(str(view.position), visible[view.name].fingerprint) for view in self.views]
        content = encode([self.declared.sql, seen, sorted(values.items()), media])
        return b'"%b"' % hashlib.blake2b(content, digest_size=12).hexdigest().encode()

    def describe(self, visible: Mapping[str, Visibility] | None = None) -> dict[str, Any]:
        """The query, as JSON objects, for a caller who sees that much of its views; None: all.

        What could name a column that is hidden from the caller is left out.
        """
        declared = self.declared
        hides_columns = visible is not None and hides_any_column(visible.values())
        error = self.error and (_CONCEALED if hides_columns else self.error)
        if not error and (missing := self.undescribed) is not None:
            error = f"view {missing} is not described yet"
        return {
            "name": self.name,
            "description": declared.description,
            "sql": None if hides_columns else declared.sql,
            "parameters": [
                {"name": each.name, "type": each.type, "default": each.default}
                for each in declared.parameters
            ],
            "key": None if declared.key is None or hides_columns else list(declared.key),
            "views": list(declared.views),
            "columns": None if hides_columns else self.columns,
            "error": error or None,
        }


def hides_any_column(visible: Iterable[Visibility]) -> bool:
    """Whether a column may be hidden; unknown if a policy cannot be applied (yet)."""
    return any(each.hidden or each == SEES_NOTHING for each in visible)


def conceal(error: QueryError, visible: Mapping[str, Visibility] | None) -> QueryError:
    """What a caller of a named query gets to read: not the query's words, if columns are hidden.

    A failure that can pass is about visible values, time or memory, so it stays as it is.
    """
    if error.retry or visible is None or not hides_any_column(visible.values()):
        return error
    return QueryError(_CONCEALED, remedy="ask whoever maintains the pipeline")


class NamedQueries:
    """All named queries of the pipeline. Belongs to the event loop."""

    def __init__(
        self, declared: Mapping[str, NamedQuery], views: Mapping[str, ServedView], sql: SqlService
    ) -> None:
        self.served = {name: ServedQuery(each, views) for name, each in declared.items()}
        self._sql = sql
        self._changed = asyncio.Event()
        self._described: object = None  # the columns with which DuckDB has checked the queries
        self._views = {view.name: view for query in self.served.values() for view in query.views}
        for view in self._views.values():
            view.listeners.append(self._note)

    def find(self, name: str, caller: Caller) -> ServedQuery:
        """The query of that name; Problem if there is none, or the caller may not call it."""
        query = self.served.get(name)
        if query is None:
            others = suggest(name, self.served) or "the pipeline declares none: app.query(…)"
            raise Problem(404, f"there is no query {name[:100]!r}", remedy=others)
        caller.check("read", "query", name)
        return query

    def callable_by(self, caller: Caller) -> list[ServedQuery]:
        """The queries that the caller may call."""
        return [
            query
            for query in self.served.values()
            if caller.rights.allows("read", "query", query.name)
        ]

    async def run(self) -> None:
        """Let DuckDB check the queries whenever the columns of their views change."""
        self._changed.set()
        while True:
            await self._changed.wait()
            await asyncio.sleep(_SETTLE_SECONDS)
            self._changed.clear()
            columns = {name: view.columns for name, view in self._views.items()}
            if columns == self._described:
                continue
            try:
                await self._describe()
                self._described = columns
            except LogError as error:
                _log.warning("cannot check the named queries: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
                self._changed.set()

    async def _describe(self) -> None:
        ready = {
            name: (query.declared.sql, query.defaults)
            for name, query in self.served.items()
            if query.undescribed is None
        }
        if ready:
            for name, found in (await self._sql.describe(ready)).items():
                self.served[name].note(found)

    def _note(self, view: ServedView, changes: list[ViewChange]) -> None:
        if not changes:
            self._changed.set()
