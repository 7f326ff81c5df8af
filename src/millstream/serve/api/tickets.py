"""Tickets, for browsers: WebSocket and EventSource cannot send a key or token as a header."""

from __future__ import annotations

from millstream.serve.context import Context
from millstream.serve.http import HttpRequest, Response
from millstream.serve.views.encoding import encode
from millstream.values.clock import to_iso

_NOT_CACHED = ((b"cache-control", b"no-store"),)


async def issue_ticket(context: Context, request: HttpRequest) -> Response:
    """A ticket for one connection of the request's caller."""
    request.refuse_unknown(())
    ticket, until = context.tickets.issue(request.caller)
    expires = to_iso(int(until * 1000))
    return Response(encode({"ticket": ticket, "expires": expires}), headers=_NOT_CACHED)
