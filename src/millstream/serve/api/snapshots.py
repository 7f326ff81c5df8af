"""Snapshots over HTTP: all views, one view, one row."""

from __future__ import annotations

import asyncio
from itertools import islice
from urllib.parse import quote

import msgspec

from millstream.serve.answer import Answer, Problem, Request
from millstream.serve.context import State
from millstream.serve.system import describe_view
from millstream.serve.views.encoding import Shape, encode
from millstream.serve.views.filter import split_select
from millstream.serve.views.served_view import Chosen, Live
from millstream.serve.views.subscription import Asked
from millstream.syntax.names import closest

MAX_ROWS = 1_000_000
# Keys among which the one that was meant is looked for; the comparison is slow.
_MOST_KEYS, _LONGEST_KEY = 500, 40
ASKED = ("where", "select", "lineage", "limit")


def asked(request: Request) -> Asked:
    """Which rows, and what of them, the query string asks for."""
    select = request.query.get("select")
    return Asked(
        where=request.query.get("where") or None,
        select=split_select(select) if select else None,
        lineage=request.flag("lineage"),
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
    if not live.warning and _has(request, tag):
        return Answer(status=304, headers=headers)
    limit = wanted.limit
    if limit is None and not live.table.keyed:
        limit = 100
    choose = live.choice(shape, order, limit)
    if live.is_slow(shape, order):
        counts, rows = await asyncio.to_thread(lambda: _encode(shape, choose()))
    else:
        counts, rows = _encode(shape, choose())
    body = b'{"view":%b,"position":"%b","watermark":%b,%b%b,"rows":%b}' % (
        *(encode(name), position.encode(), live.watermark_json, live.warning_json),
        *(counts, rows),
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
        raise _no_row(live, key)
    position = str(live.position).encode()
    headers = ((b"etag", b'"%b"' % position), (b"cache-control", b"no-cache"))
    if not live.warning and _has(request, headers[0][1]):
        return Answer(status=304, headers=headers)
    row = encode(shape.pick(live.table.rows[held]))
    body = b'{"view":%b,"position":"%b","watermark":%b,%b"key":%b,"row":%b}' % (
        *(encode(name), position, live.watermark_json, live.warning_json),
        *(held.encode(), row),
    )
    return Answer(body, headers=headers)


def _find(live: Live, key: str) -> str | None:
    rows = live.table.rows
    spellings = [key, encode([key]).decode()]
    try:
        value = msgspec.json.decode(key)
        spellings += [encode(value).decode(), encode([value]).decode()]
    except (msgspec.DecodeError, RecursionError):
        pass
    return next((spelling for spelling in spellings if spelling in rows), None)


def _no_row(live: Live, key: str) -> Problem:
    """What a key must look like, with one that this view has as the example."""
    names, known = live.key or (), list(islice(live.table.rows, _MOST_KEYS))
    message = f"view {live.name} has no row with key {key[:100]!r}"
    likely = [held.strip('[]"') for held in known if len(held) <= _LONGEST_KEY]
    close = closest(key, likely) if len(key) <= _LONGEST_KEY else None
    if close:
        return Problem(404, message, remedy=f"did you mean {close!r}?")
    example = known[0] if known else encode([f"<{name}>" for name in names]).decode()
    if len(names) == 1:
        remedy = f"the key is {names[0]}: write its value, or a JSON array as in {example}"
    else:
        remedy = f"the key is {', '.join(names)}: write a JSON array of them, as in {example}"
    return Problem(
        404, message, remedy=f"{remedy}, percent-encoded as in {quote(example, safe='')}"
    )


def _encode(shape: Shape, chosen: Chosen) -> tuple[bytes, bytes]:
    """How many rows there are and whether these are all, and these."""
    truncated = len(chosen.rows) < chosen.total
    return (
        b'"total":%d,"truncated":%b' % (chosen.total, encode(truncated)),
        b"[%b]" % b",".join([encode(shape.pick(row)) for _, row in chosen.rows]),
    )


def _has(request: Request, tag: bytes) -> bool:
    given = request.headers.get(b"if-none-match", b"")
    tags = [one.strip().removeprefix(b"W/") for one in given.split(b", ")]
    return tag in tags or b"*" in tags
