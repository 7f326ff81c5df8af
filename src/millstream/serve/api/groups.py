"""Groups: lists, shows, resets and drops them. For callers with the right `admin`."""

from __future__ import annotations

import asyncio

import msgspec

from millstream.serve.context import Context
from millstream.serve.http import HttpRequest, Response, read_json
from millstream.serve.views.encoding import encode

_HEADERS = ((b"cache-control", b"no-store"),)
_MAX_BODY = 10_000


class Reset(msgspec.Struct, forbid_unknown_fields=True):
    """Where a group continues."""

    to: str  # a time (RFC 3339), a position, `start` or `end`


async def list_groups(context: Context, request: HttpRequest) -> Response:
    request.caller.check("admin")
    request.refuse_unknown(())
    context.check_ready()
    definitions = list(context.groups.definitions.values())
    found = await asyncio.gather(*map(context.groups.describe, definitions))
    return Response(encode({"groups": found}), headers=_HEADERS)


async def show_group(context: Context, request: HttpRequest, name: str) -> Response:
    request.caller.check("admin")
    request.refuse_unknown(())
    context.check_ready()
    found = await context.groups.describe(context.groups.find(name))
    return Response(encode(found), headers=_HEADERS)


async def reset_group(context: Context, request: HttpRequest, name: str) -> Response:
    request.caller.check("admin")
    context.check_ready()
    body = await request.body(_MAX_BODY)
    wanted = read_json(body, Reset, "the request", remedy='send {"to": "2026-11-18T12:00:00Z"}')
    changed = await context.groups.reset(name, wanted.to)
    return Response(encode({"name": name, "position": changed.start}), headers=_HEADERS)


async def drop_group(context: Context, request: HttpRequest, name: str) -> Response:
    request.caller.check("admin")
    context.check_ready()
    await context.groups.drop(name)
    return Response(encode({"dropped": name}), headers=_HEADERS)
