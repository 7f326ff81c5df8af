"""Sends the clients of a server that ends to other servers, a few at a time."""

from __future__ import annotations

import asyncio

from millstream.serve.connections import SERVICE_RESTART, ClientConnection
from millstream.serve.context import Context

_TICK_SECONDS = 0.05
_LAST_SECONDS = 1.0  # for the last clients to read their last messages
_REASON = "the server is ending; connect again, to another one, with your position"


async def drain(context: Context, seconds: float, hurry: asyncio.Event) -> None:
    """Close all connections within `seconds`; return when none is left, or when `hurry` is set.

    New requests are refused meanwhile. If all clients came back at once, they would overload the
    other servers.
    """
    context.start_draining()
    clock = asyncio.get_running_loop().time
    began, told = clock(), set[ClientConnection]()
    while len(context.connections) and not hurry.is_set():
        elapsed = clock() - began
        if elapsed > seconds + _LAST_SECONDS:
            return
        waiting = [each for each in context.connections if each not in told]
        due = (len(told) + len(waiting)) * (elapsed / seconds if seconds else 1.0)
        for connection in waiting[: max(0, int(due) + 1 - len(told))]:
            told.add(connection)
            connection.close(SERVICE_RESTART, _REASON)
        await asyncio.sleep(_TICK_SECONDS)
