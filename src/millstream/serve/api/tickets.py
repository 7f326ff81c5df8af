"""Tickets, for browsers: WebSocket and EventSource cannot send a key or token as a header."""

from __future__ import annotations

from millstream.serve.context import Context
from millstream.serve.http import HttpRequest, Response
from millstream.serve.views.encoding import encode
from millstream.values.clock import to_iso
from millstream.web.cors import allows_origin
from millstream.web.problem import Problem

_NOT_CACHED = ((b"cache-control", b"no-store"),)


async def issue_ticket(context: Context, request: HttpRequest) -> Response:
    """A ticket for one connection of the request's caller."""
    request.refuse_unknown(())
    check_origin(context, request)
    ticket, until = context.tickets.issue(request.caller)
    expires = to_iso(int(until * 1000))
    return Response(encode({"ticket": ticket, "expires": expires}), headers=_NOT_CACHED)


def check_origin(context: Context, request: HttpRequest) -> None:
    """Problem if a page of another origin sent the request."""
    origin, host = (
        request.headers.get(name, b"").decode("latin-1") for name in (b"origin", b"host")
    )
    if not allows_origin(context.settings.cors_origins, origin, host):
        raise Problem(
            403,
            f"a page of {origin[:100]} may not call this",
            remedy="add its origin to serve.cors_origins if it may",
        )
