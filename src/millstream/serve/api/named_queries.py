"""Named queries over HTTP."""

from __future__ import annotations

from millstream.errors import QueryError
from millstream.serve.api.formats import choose_media, format_query_answer
from millstream.serve.api.snapshots import has_tag
from millstream.serve.context import Context
from millstream.serve.http import HttpRequest, Response
from millstream.serve.queries.named_query import conceal
from millstream.serve.queries.parameters import values_from_texts
from millstream.serve.views.encoding import encode

_REST = "choose parameters with fewer rows, or let the operator raise serve.query_rows"


async def list_queries(context: Context, request: HttpRequest) -> Response:
    """The queries that the caller may call, with their parameters and columns."""
    request.refuse_unknown(())
    queries = [
        query.describe(context.visible_to(query.declared.views, request.caller))
        for query in context.queries.callable_by(request.caller)
    ]
    return Response(encode({"queries": queries}))


async def run_named_query(context: Context, request: HttpRequest, name: str) -> Response:
    """The answer to a named query, or 304 if the client has it already."""
    query = context.queries.find(name, request.caller)
    values = values_from_texts(query.declared, request.query)
    accept = request.headers.get(b"accept", b"")
    media = choose_media(accept)  # an error before the work
    context.check_ready()
    query.check_described()
    # The answer can be newer than its tag. The client then asks once more than needed.
    visible = context.visible_to(query.declared.views, request.caller)
    tag = query.tag(values, visible, media)
    vary = (b"vary", b"accept, authorization")
    headers: tuple[tuple[bytes, bytes], ...] = ((b"cache-control", b"no-store"), vary)
    if tag is not None:
        headers = ((b"cache-control", b"no-cache"), vary, (b"etag", tag))
        if has_tag(request, tag):
            return Response(status=304, headers=headers)
    limit = context.settings.query_rows
    try:
        with context.connections.usage.querying(request.caller):
            answer = await context.sql.answer(query.declared.sql, limit, values, visible=visible)
    except QueryError as error:
        raise conceal(error, visible) from None
    return format_query_answer(accept, answer.body, headers, _REST)
