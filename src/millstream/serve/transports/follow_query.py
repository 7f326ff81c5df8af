"""Opens subscriptions to named queries and to clients' own SQL."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.pipeline.model import ParameterValue
from millstream.serve.context import Context
from millstream.serve.queries.live_query import Question
from millstream.serve.queries.live_subscription import LiveSubscriber, LiveSubscription
from millstream.serve.queries.named_query import ServedQuery
from millstream.web.problem import Problem


def follow_named_query(
    context: Context,
    query: ServedQuery,
    values: Mapping[str, ParameterValue],
    subscriber: LiveSubscriber,
) -> LiveSubscription:
    """A subscription to a query that the caller may call; it needs no right on the views."""
    context.check_ready()
    query.check_described()
    declared = query.declared
    visible = context.visible_to(declared.views, subscriber.caller)
    question = Question(declared.sql, values, declared.key, declared.name, visible)
    return LiveSubscription(context.live.open(question), subscriber)


def follow_sql(context: Context, sql: str, subscriber: LiveSubscriber) -> LiveSubscription:
    """A subscription to a caller's own SQL; it reads views that the caller may query."""
    context.check_ready()
    caller, counts = subscriber.caller, context.live.own_sql
    who, limit = (caller.kind, caller.name), context.settings.live_sql_per_caller
    if counts[who] >= limit:
        raise Problem(
            429,
            f"{caller.kind} {caller.name!r} follows {limit} SQL queries of its own already",
            remedy="unsubscribe from one, or let the pipeline declare a named query",
        )
    query = context.live.open(Question(sql, visible=context.queryable(caller)))
    counts[who] += 1

    def forget() -> None:
        counts.subtract([who])
        if not counts[who]:
            del counts[who]

    return LiveSubscription(query, subscriber, closed=forget)
