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
from millstream.serve.subscriptions.pace import Pace
from millstream.serve.subscriptions.selection import RowSelection
from millstream.serve.subscriptions.subscription import Subscription
from millstream.serve.transports.client_messages import Subscribe
from millstream.serve.transports.membership import open_membership
from millstream.serve.views.encoding import WebSocketFormat
from millstream.serve.views.replay import read_start
from millstream.serve.views.served_view import ServedView
from millstream.web.auth.caller import Caller


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
    if request.group is not None:
        return open_membership(context, subscriber.caller, subscriber.wake, request)
    match request:
        case Subscribe(view=str(name), stream=None, ledger=None):
            served = context.view(name, subscriber.caller)
            return _subscribe(context, served, subscriber, request)
        case Subscribe(stream=str(name), view=None, ledger=None):
            return _on_demand(context, "stream", name, subscriber, request)
        case Subscribe(ledger=str(name), view=None, stream=None):
            return _on_demand(context, "ledger", name, subscriber, request)
        case _:
            raise QueryError("a subscription names either a view, or a stream, or a view's ledger")


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
