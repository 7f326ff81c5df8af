"""Ad-hoc SQL over all views."""

from __future__ import annotations

import msgspec

from millstream.serve.api.formats import choose_format, format_query_answer
from millstream.serve.api.tickets import check_origin
from millstream.serve.context import Context
from millstream.serve.http import JSON, HttpRequest, Response
from millstream.web.problem import Problem

_MAX_BODY = 100_000


class Query(msgspec.Struct, forbid_unknown_fields=True):
    sql: str
    limit: int | None = None


async def run_query(context: Context, request: HttpRequest) -> Response:
    """Run a query in the SQL process, which has limited memory and time."""
    _check_origin(context, request)
    context.check_ready()
    accept = request.headers.get(b"accept", b"")
    choose_format(accept)  # an error before the work
    try:
        query = msgspec.json.decode(await request.body(_MAX_BODY), type=Query)
    except RecursionError:
        raise Problem(400, "cannot read the query: the JSON is too deep") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Problem(
            400, f"cannot read the query: {error}", remedy='send {"sql": "SELECT …"}'
        ) from None
    max_rows = context.settings.query_rows
    limit = max_rows if query.limit is None else query.limit
    if not 0 <= limit <= max_rows:
        raise Problem(400, f"limit {limit} is not from 0 to {max_rows}")
    visible = context.queryable(request.caller)
    with context.connections.usage.querying(request.caller):
        answer = await context.sql.query(query.sql, limit, visible=visible)
    return format_query_answer(accept, answer)


def _check_origin(context: Context, request: HttpRequest) -> None:
    """Problem if a page of another origin sent the request.

    The type must be JSON: a browser sends text/plain to any server for any page, without asking
    that server first.
    """
    kind = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != JSON:
        raise Problem(
            415,
            f"a query is application/json, not {kind.decode('latin-1')[:100] or 'nothing'}",
            remedy="send the header Content-Type: application/json",
        )
    check_origin(context, request)
