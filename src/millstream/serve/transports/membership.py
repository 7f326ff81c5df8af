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
        case Subscribe(view=str(name), stream=None, ledger=None):
            return "view", name
        case Subscribe(stream=str(name), view=None, ledger=None):
            return "stream", name
        case Subscribe(ledger=str(name), view=None, stream=None):
            return "ledger", name
    raise QueryError("a group reads either a view, or a stream, or a view's ledger")


def _refuse_others(request: Subscribe) -> None:
    """QueryError for options that a group does not have."""
    if request.limit is not None:
        raise QueryError("a group has no limit", remedy="leave limit out: a group has no snapshot")
