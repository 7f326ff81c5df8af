"""Opens subscriptions to named queries and to clients' own SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from millstream.pipeline.model import ParameterValue
from millstream.serve.queries.live_query import Question
from millstream.serve.queries.live_subscription import LiveSubscription
from millstream.serve.queries.named_query import ServedQuery
from millstream.serve.views.encoding import MessageFormat
from millstream.web.auth.caller import Caller
from millstream.web.problem import Problem

if TYPE_CHECKING:
    from millstream.serve.context import Context

_MAX_SQL = 100_000  # characters


class QuerySubscriptions:
    """Opens the live queries of one server for its clients."""

    def __init__(self) -> None:
        self._own_sql: Counter[tuple[str, str]] = Counter()  # subscriptions by caller

    def open_named(
        self,
        context: Context,
        caller: Caller,
        query: ServedQuery,
        values: Mapping[str, ParameterValue],
        message_format: MessageFormat,
        wake: Callable[[], None],
        after: str | None,
    ) -> LiveSubscription:
        """A subscription to a named query, which the caller may call."""
        context.check_ready()
        query.check_described()
        declared = query.declared
        visible = context.visible_to(declared.views, caller)
        question = Question(declared.sql, values, declared.key, declared.name, visible)
        return LiveSubscription(context.live.open(question), message_format, wake, after=after)

    def open_sql(
        self,
        context: Context,
        caller: Caller,
        sql: str,
        message_format: MessageFormat,
        wake: Callable[[], None],
        after: str | None,
    ) -> LiveSubscription:
        """A subscription to a caller's own SQL; it reads views that the caller may query."""
        context.check_ready()
        if len(sql) > _MAX_SQL:
            raise Problem(400, f"the sql has more than {_MAX_SQL} characters")
        who, limit = (caller.kind, caller.name), context.settings.live_sql_per_caller
        if self._own_sql[who] >= limit:
            raise Problem(
                429,
                f"{caller.kind} {caller.name!r} follows {limit} SQL queries of its own already",
                remedy="unsubscribe from one, or let the pipeline declare a named query",
            )
        question = Question(sql, visible=context.queryable(caller))
        query = context.live.open(question)
        self._own_sql[who] += 1

        def closed() -> None:
            self._own_sql[who] -= 1
            if not self._own_sql[who]:
                del self._own_sql[who]

        return LiveSubscription(query, message_format, wake, after=after, closed=closed)
