"""Usage by caller: administrators see all, others themselves."""

from __future__ import annotations

from millstream.serve.connections import Connections
from millstream.serve.context import Context
from millstream.serve.http import HttpRequest, Response
from millstream.serve.views.encoding import encode
from millstream.web.auth.usage import CallerUsage, name_of

_HEADERS = ((b"cache-control", b"no-store"),)


async def show_usage(context: Context, request: HttpRequest) -> Response:
    request.refuse_unknown(())
    own = name_of(request.caller)
    sees_all = request.caller.rights.allows("admin")
    found = [
        _describe(name, each, context.connections)
        for name, each in context.connections.usage
        if sees_all or name == own
    ]
    return Response(encode({"callers": found}), headers=_HEADERS)


def _describe(name: str, usage: CallerUsage, connections: Connections) -> dict[str, object]:
    return {
        "caller": name,
        "requests": usage.requests,
        "events": usage.events,
        "bytes": usage.bytes,
        "connections": connections.count(name),
        "query_seconds": round(usage.query_seconds, 3),
    }
