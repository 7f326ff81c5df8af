"""The HTTP server of this tier: which paths are open, and what a WebSocket needs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from millstream.serve.context import Context
from millstream.serve.routes import HttpApi
from millstream.serve.transports.websocket import check_upgrade, websocket_protocol
from millstream.web.access_server import AccessServer
from millstream.web.auth.api_keys import digest
from millstream.web.auth.rights import Rights

_CLOSED = ("v1", "metrics")  # first parts of paths; others are the dashboard's files and health
_CERTIFIED = Rights(["read:*", "query:*"])


class ServeServer(AccessServer):
    """The server for clients. SettingsError as in `AccessServer`."""

    def __init__(self, context: Context, *, keys_file: Path, operator_key: str = "") -> None:
        settings = context.settings
        super().__init__(
            HttpApi(context),
            settings,
            tier="serve",
            stop_seconds=1,
            keys_file=keys_file,
            is_open=is_open,
            unit="requests",
            operator=digest(operator_key.encode()) if operator_key else b"",
            certified=_CERTIFIED,
            tickets=context.tickets,
            usage=context.connections.usage,
            websocket=websocket_protocol(context),
            check_websocket=partial(check_upgrade, context),
            check_caller=context.connections.check_caller,
        )
        context.logins = self.logins
        context.refused = lambda: self.refused


def is_open(path: str) -> bool:
    """Whether everybody may use a path: health, and the page that asks for a key."""
    return path.split("/", 2)[1:2] not in [[each] for each in _CLOSED]
