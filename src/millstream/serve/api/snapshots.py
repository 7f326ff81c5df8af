"""Snapshots over HTTP: all views, one view, one row."""

from __future__ import annotations

from itertools import islice
from urllib.parse import quote

import msgspec

from millstream.serve.access.visibility import Visibility
from millstream.serve.api.formats import (
    FORMATS,
    JSON,
    Column,
    choose_media,
    truncated_headers,
    write_rows,
)
from millstream.serve.context import Context
from millstream.serve.http import HttpRequest, Response
from millstream.serve.subscriptions.selection import RowSelection
from millstream.serve.system import describe_view
from millstream.serve.views.encoding import Encoding, encode
from millstream.serve.views.filter import split_select
from millstream.serve.views.row_scan import RowScan, in_slices
from millstream.serve.views.served_view import ServedView
from millstream.syntax.names import closest
from millstream.values.hidden_columns import LINEAGE
from millstream.web.problem import Problem

Headers = tuple[tuple[bytes, bytes], ...]
MAX_ROWS = 1_000_000
# Keys that an unknown key is compared with, to suggest one; the comparison is slow.
_MAX_KEYS, _MAX_KEY_LENGTH = 500, 40
# What a caller sees depends on who it is.
_HEADERS = ((b"cache-control", b"no-cache"), (b"vary", b"accept, authorization"))
SELECTION_PARAMETERS = ("where", "select", "lineage", "limit")


def read_selection(request: HttpRequest, visibility: Visibility) -> RowSelection:
    """The rows and columns that the query string selects, of those that the caller sees."""
    select = request.query.get("select")
    return RowSelection(
        where=request.query.get("where") or None,
        select=split_select(select) if select else None,
        lineage=request.flag("lineage"),
        limit=request.integer("limit", MAX_ROWS),
        visibility=visibility,
    )


async def list_views(context: Context, request: HttpRequest) -> Response:
    request.refuse_unknown(())
    views = [
        describe_view(context.app, view, context.visibility("view", view.name, request.caller))
        for view in context.views.values()
        if request.caller.rights.allows("read", "view", view.name)
    ]
    return Response(encode({"views": views}))


async def show_view(context: Context, request: HttpRequest, name: str) -> Response:
    """A view's current rows, or 304 if the client has them already."""
    view = context.view(name, request.caller)
    request.refuse_unknown((*SELECTION_PARAMETERS, "order"))
    visibility = context.visibility("view", name, request.caller)
    selection = read_selection(request, visibility)
    order = request.query.get("order") or None
    encoding = selection.encoding(view)
    media = choose_media(request.headers.get(b"accept", b""))
    position, tag = str(view.position).encode(), _tag(view, visibility, media)
    headers: Headers = ((b"etag", tag), *_HEADERS)
    if not view.warning and has_tag(request, tag):
        return Response(status=304, headers=headers)
    scan = view.scan_rows(encoding, order, selection.row_limit(view))
    head = _head(view, position, visibility)
    await in_slices(scan.steps())
    row_format = FORMATS[media](_columns(selection, encoding))
    head += b'"total":%d,"truncated":%b,' % (scan.total, encode(scan.truncated))
    if scan.truncated:
        head += b'"hint":%b,' % encode(_rest_hint(view, scan))
        headers = (*headers, *truncated_headers(_rest_hint(view, scan)))
    body = write_rows(row_format, head, (encoding.project(row) for _, row in scan), len(scan))
    return Response(body, content_type=row_format.content_type, headers=headers)


async def show_row(context: Context, request: HttpRequest, name: str, key: str) -> Response:
    """One row by its key: a JSON array, or the plain value where the key is one column."""
    view = context.view(name, request.caller)
    request.refuse_unknown(("select", "lineage"))
    if not view.table.keyed:
        raise Problem(404, f"view {name} has no key, so it has no row {key[:100]!r}")
    visibility = context.visibility("view", name, request.caller)
    encoding = read_selection(request, visibility).encoding(view)
    found = _find_key(view, key, encoding)
    if found is None:
        raise _no_row(view, key, encoding)
    position, tag = str(view.position).encode(), _tag(view, visibility)
    headers = ((b"etag", tag), *_HEADERS)
    if not view.warning and has_tag(request, tag):
        return Response(status=304, headers=headers)
    row = encode(encoding.project(view.table.rows[found]))
    head = _head(view, position, visibility)
    body = b'{%b"key":%b,"row":%b}' % (head, found.encode(), row)
    return Response(body, headers=headers)


def _tag(view: ServedView, visibility: Visibility, media: str = JSON) -> bytes:
    """The ETag: callers who see other rows or columns have another one, and so has a format."""
    parts = [str(view.position), visibility.fingerprint, "" if media == JSON else media]
    return b'"%b"' % "/".join(filter(None, parts)).encode()


def _head(view: ServedView, position: bytes, visibility: Visibility) -> bytes:
    """The first members of an answer."""
    warning = view.warning_json(visibility)
    members = encode(view.name), position, view.watermark_json, warning
    return b'"view":%b,"position":"%b","watermark":%b,%b' % members


def _find_key(view: ServedView, key: str, encoding: Encoding) -> str | None:
    rows = view.table.rows
    spellings = [key, encode([key]).decode()]
    try:
        value = msgspec.json.decode(key)
        spellings += [encode(value).decode(), encode([value]).decode()]
    except (msgspec.DecodeError, RecursionError):
        pass
    found = (each for each in spellings if each in rows and encoding.matches(rows[each]))
    return next(found, None)


def _no_row(view: ServedView, key: str, encoding: Encoding) -> Problem:
    """Problem 404 that shows how to write a key, with one that the caller sees as the example."""
    first = islice(view.table.rows.items(), _MAX_KEYS)
    names, known = view.key or (), [held for held, row in first if encoding.matches(row)]
    message = f"view {view.name} has no row with key {key[:100]!r}"
    likely = [held.strip('[]"') for held in known if len(held) <= _MAX_KEY_LENGTH]
    close = closest(key, likely) if len(key) <= _MAX_KEY_LENGTH else None
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


def _columns(selection: RowSelection, encoding: Encoding) -> list[Column]:
    """Names and types of the columns in the answer, for formats that need them."""
    types = {column.name: column.type for column in encoding.columns}
    if selection.select:
        return [(path, types.get(path, "string")) for path in selection.select]
    hidden = [(name, "string") for name in LINEAGE if selection.lineage and name not in types]
    return [*types.items(), *hidden]


def _rest_hint(view: ServedView, scan: RowScan) -> str:
    """How to get the rows that the limit left out."""
    if view.table.keyed:
        return f"{len(scan)} of {scan.total} rows: raise limit, or continue with where on the key"
    return (
        f"{len(scan)} of {scan.total} rows: set limit={scan.total} for all rows that the server "
        "holds, or read older ones with /changes?after="
    )


def has_tag(request: HttpRequest, tag: bytes) -> bool:
    """Whether the client has the answer of that ETag."""
    given = request.headers.get(b"if-none-match", b"")
    tags = [one.strip().removeprefix(b"W/") for one in given.split(b", ")]
    return tag in tags or b"*" in tags
