"""Ad-hoc SQL over all views."""

from __future__ import annotations

import msgspec

from millstream.serve.api.formats import choose_format, format_query_answer
from millstream.serve.context import Context
from millstream.serve.http import JSON, HttpRequest, Response, read_json
from millstream.web.problem import Problem

_MAX_BODY = 100_000


class Query(msgspec.Struct, forbid_unknown_fields=True):
    sql: str
    limit: int | None = None


async def run_query(context: Context, request: HttpRequest) -> Response:
    """Run a query in the SQL process, which has limited memory and time."""
    _check_type(request)
    context.check_ready()
    accept = request.headers.get(b"accept", b"")
    choose_format(accept)  # an error before the work
    body = await request.body(_MAX_BODY)
    query = read_json(body, Query, "the query", remedy='send {"sql": "SELECT …"}')
    max_rows = context.settings.query_rows
    limit = max_rows if query.limit is None else query.limit
    if not 0 <= limit <= max_rows:
        raise Problem(400, f"limit {limit} is not from 0 to {max_rows}")
    visible = context.queryable(request.caller)
    with context.connections.usage.querying(request.caller):
        answer = await context.sql.query(query.sql, limit, visible=visible)
    return format_query_answer(accept, answer)


def _check_type(request: HttpRequest) -> None:
    """Problem if the body is not JSON.

    A browser sends text/plain to any server for any page, without asking that server first.
    """
    kind = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != JSON:
        raise Problem(
            415,
            f"a query is application/json, not {kind.decode('latin-1')[:100] or 'nothing'}",
            remedy="send the header Content-Type: application/json",
        )
