"""Ad-hoc SQL over all views."""

from __future__ import annotations

import msgspec

from millstream.serve.answer import JSON, Answer, Problem, Request
from millstream.serve.context import State
from millstream.web.allowed_hosts import is_same_origin

_MAX_BODY = 100_000


class Query(msgspec.Struct, forbid_unknown_fields=True):
    sql: str
    limit: int | None = None


async def run_query(state: State, request: Request) -> Answer:
    """The rows that a query finds, in a process of its own with little memory and less time."""
    _check_sender(state, request)
    state.check_ready()
    try:
        query = msgspec.json.decode(await request.body(_MAX_BODY), type=Query)
    except RecursionError:
        raise Problem(400, "cannot read the query: the JSON is too deep") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Problem(
            400, f"cannot read the query: {error}", remedy='send {"sql": "SELECT …"}'
        ) from None
    most = state.settings.query_rows
    limit = most if query.limit is None else query.limit
    if not 0 <= limit <= most:
        raise Problem(400, f"limit {limit} is not from 0 to {most}")
    return Answer(await state.sql.query(query.sql, limit))


def _check_sender(state: State, request: Request) -> None:
    """Problem unless our own pages sent it, or no page at all.

    A browser sends text/plain to any server for any page, without asking that server first.
    """
    kind = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != JSON:
        raise Problem(
            415,
            f"a query is application/json, not {kind.decode('latin-1')[:100] or 'nothing'}",
            remedy="send the header Content-Type: application/json",
        )
    origin, host = (
        request.headers.get(name, b"").decode("latin-1") for name in (b"origin", b"host")
    )
    if not is_same_origin(origin, host) and origin not in state.settings.origins:
        raise Problem(
            403,
            f"a page of {origin[:100]} may not ask",
            remedy="add its origin to serve.origins, if it may",
        )
