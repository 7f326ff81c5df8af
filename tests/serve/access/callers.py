"""Callers with claims, for a server of a test."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from tests.serve.pipeline import Pipeline, Socket, socket

from millstream.serve.service import Server
from millstream.serve.transports.connection import Connection
from millstream.web.asgi import Application, Receive, Scope, Send
from millstream.web.auth.caller import Caller, set_caller
from millstream.web.auth.rights import EVERYTHING


def caller(**claims: Any) -> Caller:
    return Caller("key", "test", EVERYTHING, claims=claims)


class Callers:
    """Makes the request's `Authorization: Bearer NAME` the caller of that name."""

    def __init__(self, callers: Mapping[str, Caller], inner: Application) -> None:
        self._callers = callers
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = dict(scope["headers"]).get(b"authorization", b"").removeprefix(b"Bearer ").decode()
        if name in self._callers:
            set_caller(scope, self._callers[name])
        await self._inner(scope, receive, send)


@contextlib.asynccontextmanager
async def serve(
    pipeline: Pipeline, callers: Mapping[str, Caller], **settings: Any
) -> AsyncIterator[Server]:
    """A server that knows these callers."""
    async with pipeline.server(**settings) as server:
        # Behind the server's own login, which makes everybody an address here.
        login: Any = server.http._authentication
        login._inner = Callers(callers, login._inner)
        yield server


@contextlib.asynccontextmanager
async def connect(server: Server, who: Caller) -> AsyncIterator[Socket]:
    """A WebSocket of this caller."""
    others = set(server.context.connections)
    async with socket(server) as client:
        (connection,) = set(server.context.connections) - others
        assert isinstance(connection, Connection)
        connection.caller = who
        yield client
