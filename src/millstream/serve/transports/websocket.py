"""Upgrades HTTP connections to WebSockets; picows on uvicorn's port."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from picows import WSAutoPingStrategy, WSUpgradeRequest
from picows.picows import WSProtocol  # type: ignore[attr-defined]

from millstream.serve.context import Context
from millstream.serve.transports.connection import Connection
from millstream.web.asgi import Scope
from millstream.web.auth.caller import Caller, caller_of
from millstream.web.cors import allows_origin
from millstream.web.problem import Problem

_log = logging.getLogger(__name__)
PATH = "/v1/connect"


def check_upgrade(context: Context, scope: Scope) -> None:
    """Problem if a request cannot open a WebSocket, whoever sends it."""
    if scope["path"] != PATH:
        raise Problem(404, f"there is no WebSocket at {scope['path'][:200]}; it is at {PATH}")
    headers = dict(scope["headers"])
    origin, host = (headers.get(name, b"").decode("latin-1") for name in (b"origin", b"host"))
    if not allows_origin(context.settings.cors_origins, origin, host):
        raise Problem(
            403,
            f"a page of {origin[:200]} may not connect",
            remedy="name its origin in serve.cors_origins if it may",
        )
    context.check_draining()
    context.check_ready()


def websocket_protocol(context: Context) -> type[Any]:
    """The class to which uvicorn hands a connection that becomes a WebSocket."""

    def accept(caller: Caller, address: str, _: WSUpgradeRequest) -> Connection:
        return Connection(context, caller, address)

    class Upgraded(WSProtocol):  # type: ignore[misc]
        release: Callable[[], None]  # ends the counting of this connection

        def __init__(self, scope: Scope) -> None:
            ping = context.settings.ping_seconds
            client = scope.get("client")
            address = client[0] if client else ""
            super().__init__(
                None, None, False, partial(accept, caller_of(scope), address), _log, True, 10.0,
                True, ping, ping, WSAutoPingStrategy.PING_WHEN_IDLE,
                False,  # no automatic pongs: we send them, and limit the unread ones
                context.settings.max_frame_bytes, None, 2048,
            )  # fmt: skip

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self.release()

        def data_received(self, data: bytes) -> None:
            # uvicorn hands over the request that it has read; picows reads from a buffer.
            while data:
                buffer = self.get_buffer(-1)
                size = min(len(buffer), len(data))
                buffer[:size] = data[:size]
                self.buffer_updated(size)
                data = data[size:]

    return Upgraded
