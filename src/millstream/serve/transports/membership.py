"""A subscription with a group: the request becomes a membership."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from millstream.errors import QueryError
from millstream.serve.context import Context
from millstream.serve.groups.definition import GroupRequest, Kind
from millstream.serve.groups.member import Member
from millstream.serve.transports.client_messages import Subscribe
from millstream.web.auth.caller import Caller

_DEFAULT_PENDING, _MAX_PENDING = 100, 10_000


def open_membership(
    context: Context, caller: Caller, wake: Callable[[], None], request: Subscribe
) -> AbstractAsyncContextManager[Member]:
    """A member of the request's group within the block; MillstreamError if it cannot be one."""
    kind, source = _source(request)
    context.check_source(kind, source, caller)
    _refuse_others(request)
    max_pending = _DEFAULT_PENDING if request.max_pending is None else request.max_pending
    if not 1 <= max_pending <= _MAX_PENDING:
        raise QueryError(f"max_pending {max_pending} is not from 1 to {_MAX_PENDING}")
    wanted = GroupRequest(
        name=request.group or "",
        kind=kind,
        source=source,
        where=request.where or None,
        select=tuple(request.select) if request.select else None,
        lineage=request.lineage,
        ack=request.ack,
        ack_timeout=request.ack_timeout,
        max_attempts=request.max_attempts,
        after=request.after,
    )
    member = Member(request.id, wanted, f"{caller.kind} {caller.name}", max_pending, wake)
    return context.groups.join(member, context.visibility(kind, source, caller))


def _source(request: Subscribe) -> tuple[Kind, str]:
    match request:
        case Subscribe(view=str(name)):
            return "view", name
        case Subscribe(stream=str(name)):
            return "stream", name
        case Subscribe(ledger=str(name)):
            return "ledger", name
    raise QueryError(
        "a group reads a view, a stream or a view's ledger, and no query",
        remedy="declare the query as a view",
    )


def _refuse_others(request: Subscribe) -> None:
    """QueryError for options that a group does not have."""
    for name in ("limit", "sample", "max_rate", "max_rate_per_key"):
        if getattr(request, name) is not None:
            raise QueryError(
                f"a group has no {name}", remedy="leave it out: every message reaches a member"
            )
    if request.when_slow not in ("buffer", "catch_up"):
        raise QueryError(
            f"a group has no when_slow={request.when_slow!r}",
            remedy="leave it out: messages that a slow member does not take go to others",
        )
