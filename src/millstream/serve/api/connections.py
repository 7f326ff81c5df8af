"""Connections of clients: lists them, and closes one. For callers with the right `admin`."""

from __future__ import annotations

import asyncio

from millstream.serve.connections import CLOSED_BY_ADMIN
from millstream.serve.context import Context
from millstream.serve.http import HttpRequest, Response
from millstream.serve.views.encoding import encode
from millstream.web.problem import Problem

_AT_ONCE = 200  # reports; then other clients have their turn
_HEADERS = ((b"cache-control", b"no-store"),)


async def list_connections(context: Context, request: HttpRequest) -> Response:
    request.caller.check("admin")
    request.refuse_unknown(())
    reports = []
    for number, connection in enumerate(context.connections, 1):
        reports.append(context.connections.report(connection))
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
    found = [report for report in reports if report is not None]
    return Response(encode({"connections": found}), headers=_HEADERS)


async def close_connection(context: Context, request: HttpRequest, identifier: str) -> Response:
    request.caller.check("admin")
    connection = context.connections.find(identifier)
    if connection is None:
        raise Problem(
            404,
            f"this server has no connection {identifier[:100]!r}",
            remedy="GET /v1/connections lists them; each server has its own",
        )
    connection.close(CLOSED_BY_ADMIN, "an administrator closed the connection")
    return Response(encode({"closed": identifier}), headers=_HEADERS)
