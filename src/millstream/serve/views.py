"""Snapshots over HTTP: all views, one view, one row."""

from __future__ import annotations

import asyncio

import msgspec

from millstream.names import suggest
from millstream.serve.answer import Answer, Problem, Request
from millstream.serve.filter import split_select
from millstream.serve.live import BIG, Keyed, Live
from millstream.serve.shape import Shape, encode
from millstream.serve.state import State
from millstream.serve.subscription import Asked
from millstream.serve.system import describe_view

MAX_ROWS = 1_000_000
ASKED = ("where", "select", "lineage", "limit")


def asked(request: Request) -> Asked:
    """Which rows, and what of them, the query string asks for."""
    select = request.query.get("select")
    return Asked(
        where=request.query.get("where") or None,
        select=split_select(select) if select else None,
        lineage=request.flag("lineage") if "lineage" in request.query else False,
        limit=request.whole("limit", MAX_ROWS),
    )


async def list_views(state: State, request: Request) -> Answer:
    request.refuse_unknown(())
    views = [describe_view(state.app, live) for live in state.views.values()]
    return Answer(encode({"views": views}))


async def show_view(state: State, request: Request, name: str) -> Answer:
    """A view's rows now, unless the client has them already."""
    live = state.view(name)
    request.refuse_unknown((*ASKED, "order"))
    wanted, order = asked(request), request.query.get("order") or None
    shape = wanted.shape(live)
    position = str(live.position)
    tag = f'"{position}"'.encode()
    headers = ((b"etag", tag), (b"cache-control", b"no-cache"))
    if _has(request, tag):
        return Answer(status=304, headers=headers)
    limit = wanted.limit
    if limit is None and not live.table.keyed:
        limit = 100
    choose = live.choice(shape, order, limit)
    if len(live.table) <= BIG:
        rows = _encode(shape, choose())
    else:
        rows = await asyncio.to_thread(lambda: _encode(shape, choose()))
    body = b'{"view":%b,"position":"%b","watermark":%b,"rows":%b}' % (
        *(encode(name), position.encode(), live.watermark_json),
        rows,
    )
    return Answer(body, headers=headers)


async def show_row(state: State, request: Request, name: str, key: str) -> Answer:
    """One row by its key: a JSON array, or the plain value where the key is one column."""
    live = state.view(name)
    request.refuse_unknown(("select", "lineage"))
    if not live.table.keyed:
        raise Problem(404, f"view {name} has no key, so it has no row {key[:100]!r}")
    shape = asked(request).shape(live)
    held = _find(live, key)
    if held is None:
        close = suggest(key, (k.strip('[]"') for k in list(live.table.rows)[:1000]))
        remedy = close if close.startswith("did") else 'write ["a","b"], or a if it is one column'
        raise Problem(404, f"view {name} has no row with key {key[:100]!r}", remedy=remedy)
    position = str(live.position).encode()
    headers = ((b"etag", b'"%b"' % position), (b"cache-control", b"no-cache"))
    if _has(request, headers[0][1]):
        return Answer(status=304, headers=headers)
    row = encode(shape.pick(live.table.rows[held]))
    body = b'{"view":%b,"position":"%b","watermark":%b,"key":%b,"row":%b}' % (
        *(encode(name), position, live.watermark_json),
        *(held.encode(), row),
    )
    return Answer(body, headers=headers)


def _find(live: Live, key: str) -> str | None:
    rows = live.table.rows
    spellings = [key, encode([key]).decode()]
    try:
        value = msgspec.json.decode(key)
        spellings += [encode(value).decode(), encode([value]).decode()]
    except msgspec.DecodeError:
        pass
    return next((spelling for spelling in spellings if spelling in rows), None)


def _encode(shape: Shape, rows: list[Keyed]) -> bytes:
    return b"[%b]" % b",".join([encode(shape.pick(row)) for _, row in rows])


def _has(request: Request, tag: bytes) -> bool:
    given = request.headers.get(b"if-none-match", b"")
    tags = [one.strip().removeprefix(b"W/") for one in given.split(b", ")]
    return tag in tags or b"*" in tags
