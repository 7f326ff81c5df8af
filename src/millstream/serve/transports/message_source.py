"""What a subscription is to its connection, and the one place where a request becomes one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from millstream.errors import QueryError
from millstream.serve.connections import SubscriptionReport
from millstream.serve.context import Context
from millstream.serve.queries.live_subscription import LiveSubscriber
from millstream.serve.queries.parameters import values_from_json
from millstream.serve.subscriptions.pace import Pace
from millstream.serve.subscriptions.selection import RowSelection
from millstream.serve.subscriptions.subscription import Subscription
from millstream.serve.transports.client_messages import Subscribe
from millstream.serve.transports.follow_query import follow_named_query, follow_sql
from millstream.serve.transports.membership import open_membership
from millstream.serve.views.encoding import WebSocketFormat
from millstream.serve.views.replay import read_start
from millstream.serve.views.served_view import ServedView
from millstream.web.auth.caller import Caller

_KINDS = ("view", "stream", "ledger", "query", "sql")
_ROW_FIELDS = ("where", "select", "limit", "lineage", "sample", "max_rate", "max_rate_per_key")


class MessageSource(Protocol):
    """Messages for one client, made when its transport has room. Nothing here blocks.

    A source calls the subscriber's `wake` when it may have messages. It keeps no queue that grows
    while the client does not read.
    """

    @property
    def report(self) -> SubscriptionReport:
        """What `/v1/connections` shows."""
        ...

    @property
    def has_more(self) -> bool:
        """Whether `next_messages` stopped early to give others their turn; it wakes again."""
        ...

    @property
    def is_paused(self) -> bool: ...

    @property
    def skipped(self) -> int:
        """Changes that were left out for this client since the subscription began."""
        ...

    def next_messages(self, size: int = 65_536) -> list[bytes]:
        """The next messages, about `size` bytes of them; empty if there are none now."""
        ...

    def refresh(self) -> bytes | None:
        """A message with the position, if the filter has hidden all changes since the last one."""
        ...

    def mark_slow(self) -> None:
        """Note that the transport has no room; changes may wait."""
        ...

    def is_too_slow(self, full_seconds: float) -> bool:
        """Whether to close the connection: its transport has been full for that long."""
        ...

    def update(self, fields: Mapping[str, object]) -> None:
        """Change the given fields of the request; QueryError if they do not fit.

        An `updated` message is among the next messages, after which they are in effect.
        """
        ...

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None:
        """End; `next_messages` is not called again."""
        ...


@dataclass(frozen=True, slots=True)
class Subscriber:
    """The client's side of a subscription."""

    caller: Caller
    wake: Callable[[], None]
    # Subscriptions of one connection share it: one large snapshot at a time.
    snapshot_lock: asyncio.Lock = field(default_factory=asyncio.Lock)


# A source that is ready, or one that must be opened first and stays open within the block.
Opening = MessageSource | AbstractAsyncContextManager[MessageSource]


def open_source(context: Context, subscriber: Subscriber, request: Subscribe) -> Opening:
    """The source of messages for a request; MillstreamError if there is none."""
    named = [kind for kind in _KINDS if getattr(request, kind) is not None]
    if len(named) != 1:
        raise QueryError(
            "a subscription names either a view, a stream, a view's ledger, a query, or has sql"
        )
    if named[0] != "query" and request.params is not None:
        raise QueryError("params are for a named query", remedy="leave them out")
    if request.group is not None:
        return open_membership(context, subscriber.caller, subscriber.wake, request)
    match request:
        case Subscribe(view=str(name)):
            served = context.view(name, subscriber.caller)
            return _subscribe(context, served, subscriber, request)
        case Subscribe(query=str(name)):
            _check_query_fields(request)
            query = context.queries.find(name, subscriber.caller)
            values = values_from_json(query.declared, request.params or {})
            return follow_named_query(context, query, values, _live(subscriber, request))
        case Subscribe(sql=str(sql)):
            _check_query_fields(request)
            return follow_sql(context, sql, _live(subscriber, request))
        case _:
            name = request.stream or request.ledger or ""
            return _on_demand(context, named[0], name, subscriber, request)


def _live(subscriber: Subscriber, request: Subscribe) -> LiveSubscriber:
    message_format = WebSocketFormat(request.id)
    return LiveSubscriber(subscriber.caller, message_format, subscriber.wake, request.after)


def _check_query_fields(request: Subscribe) -> None:
    """QueryError for fields that only subscriptions to rows have."""
    for field_ in _ROW_FIELDS:
        if getattr(request, field_):
            raise QueryError(
                f"a subscription to a query has no {field_}", remedy="write it into the query"
            )
    if request.when_slow in ("sample", "disconnect"):
        raise QueryError(
            f"a subscription to a query has no when_slow={request.when_slow!r}",
            remedy="leave it out: a slow client gets the newest result",
        )


@contextlib.asynccontextmanager
async def _on_demand(
    context: Context, kind: str, name: str, subscriber: Subscriber, request: Subscribe
) -> AsyncIterator[MessageSource]:
    """A stream or ledger: it is read only while clients use it, so reading may have to start."""
    async with context.read_on_demand(kind, name, subscriber.caller) as served:
        yield _subscribe(context, served, subscriber, request)


def _subscribe(
    context: Context, served: ServedView, subscriber: Subscriber, request: Subscribe
) -> Subscription:
    when_slow = "buffer" if request.when_slow == "catch_up" else request.when_slow
    return Subscription(
        served,
        RowSelection(
            request.where or None,
            tuple(request.select) if request.select else None,
            request.lineage,
            request.limit,
            context.visibility(served.kind, served.name, subscriber.caller),
        ),
        WebSocketFormat(request.id),
        subscriber.wake,
        context.replay,
        after=read_start(request.after),
        pace=Pace(when_slow, request.sample, request.max_rate, request.max_rate_per_key),
        snapshot_lock=subscriber.snapshot_lock,
    )
