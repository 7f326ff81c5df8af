"""Ad-hoc SQL over all views."""

from __future__ import annotations

import msgspec

from millstream.serve.answer import Answer, Problem, Request
from millstream.serve.state import State

_MAX_BODY = 100_000


class Query(msgspec.Struct, forbid_unknown_fields=True):
    sql: str
    limit: int | None = None


async def run_query(state: State, request: Request) -> Answer:
    """The rows that a query finds, in a process of its own with little memory and less time."""
    state.check_ready()
    try:
        query = msgspec.json.decode(await request.body(_MAX_BODY), type=Query)
    except msgspec.MsgspecError as error:
        raise Problem(
            400, f"cannot read the query: {error}", remedy='send {"sql": "SELECT …"}'
        ) from None
    most = state.settings.query_rows
    limit = most if query.limit is None else query.limit
    if not 0 <= limit <= most:
        raise Problem(400, f"limit {limit} is not from 0 to {most}")
    return Answer(await state.sql.query(query.sql, limit))
