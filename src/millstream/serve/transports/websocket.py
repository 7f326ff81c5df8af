"""Upgrades HTTP connections to WebSockets; picows on uvicorn's port."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from picows import (
    WSAutoPingStrategy,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
)
from picows.picows import WSProtocol  # type: ignore[attr-defined]

from millstream.serve.context import Context
from millstream.serve.transports.connection import Connection
from millstream.web.auth.caller import ANYBODY
from millstream.web.cors import is_same_origin
from millstream.web.problem import Problem

_log = logging.getLogger(__name__)
PATH = "/v1/connect"


def websocket_protocol(context: Context) -> type[Any]:
    """The class to which uvicorn hands a connection that becomes a WebSocket."""

    def accept(request: WSUpgradeRequest) -> Connection | WSUpgradeResponseWithListener:
        path = request.path.decode("latin-1").partition("?")[0]
        if path != PATH:
            return _refuse(404, f"there is no WebSocket at {path}; it is at {PATH}")
        if not _may_connect(request, context.settings.origins):
            return _refuse(403, "a page of another origin may not connect")
        if not context.ready:
            return _refuse(503, "the server is still reading the log")
        try:
            context.check_draining()
            context.connections.check_caller(ANYBODY)
        except Problem as problem:
            return _refuse(problem.status, str(problem))
        return Connection(context, ANYBODY)

    class Upgraded(WSProtocol):  # type: ignore[misc]
        release: Callable[[], None]  # ends the counting of this connection

        def __init__(self, config: Any, server_state: Any, app_state: Any) -> None:
            ping = context.settings.ping_seconds
            super().__init__(
                None, None, False, accept, _log, True, 10.0, True, ping, ping,
                WSAutoPingStrategy.PING_WHEN_IDLE,
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


def _refuse(status: int, reason: str) -> WSUpgradeResponseWithListener:
    headers = {"Retry-After": "1"} if status in (429, 503) else None
    return WSUpgradeResponseWithListener(
        WSUpgradeResponse.create_error_response(status, reason.encode(), headers), None
    )


def _may_connect(request: WSUpgradeRequest, others: list[str]) -> bool:
    """Whether the page is ours, or of an origin that the settings allow."""
    origin = request.headers.get("origin", "")
    return origin in others or is_same_origin(origin, request.headers.get("host", ""))
