"""Changes of a view or stream, over a WebSocket that reconnects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any, Self

import msgspec
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from millstream.client.backoff import Backoff
from millstream.client.messages import (
    Change,
    ErrorMessage,
    Gap,
    Lag,
    Message,
    Pong,
    ServerMessage,
    Snapshot,
    decode,
    decode_exactly,
)
from millstream.client.servers import Servers
from millstream.errors import NotReachable, QueryError, RequestRefused

TOO_SLOW = 4008  # the server's close code for when_slow="disconnect"
_ID = "1"  # one subscription per socket

_log = logging.getLogger(__name__)


class Changes:
    """An endless iterator of messages: `async for message in changes`.

    After a lost connection it continues on the next server, from the position of the last message:
    no message is lost or repeated. Use `async with` to close it when you stop early.
    """

    def __init__(
        self,
        servers: Servers,
        request: dict[str, Any],
        *,
        backoff: Backoff,
        attempts: int | None,
    ) -> None:
        self._servers = servers
        self._request = request
        self._backoff = backoff
        self._attempts = attempts
        # A ledger's amounts are added up, so they must not be rounded to floats.
        self._decode = decode_exactly if request.get("ledger") else decode
        self._messages = self._follow()

    @property
    def position(self) -> str | None:
        """The current position; pass it as `after` to continue from here, on any server."""
        return self._request.get("after")

    def __aiter__(self) -> AsyncGenerator[Message, None]:
        return self._messages

    async def __anext__(self) -> Message:
        return await anext(self._messages)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection and end the iteration."""
        await self._messages.aclose()

    async def _follow(self) -> AsyncGenerator[Message, None]:
        failures = 0
        while True:
            server = self._servers.current
            try:
                async with open_socket(server) as socket:
                    await socket.send(subscribe_message(self._request))
                    async for raw in socket:
                        message = _check(self._decode(raw))
                        if message is None:
                            continue
                        failures = 0
                        if isinstance(message, Snapshot | Change):
                            self._request["after"] = message.position
                        yield message
                reason = f"{server} closed the connection"
            except ConnectionClosed as closed:
                _raise_if_too_slow(server, closed)
                reason = f"{server}: {closed}"
            except (OSError, TimeoutError, InvalidHandshake) as error:
                reason = f"{server}: {str(error) or type(error).__name__}"
            failures += 1
            if self._attempts is not None and failures >= self._attempts:
                raise NotReachable(
                    f"cannot follow {_name(self._request)}: {reason}",
                    remedy=f"check that a server runs on {self._servers}",
                )
            wait = self._backoff.after(failures)
            _log.info("following %s: %s; again in %.1f s", _name(self._request), reason, wait)
            self._servers.use_next()
            await asyncio.sleep(wait)


def open_socket(server: str) -> connect:
    """A WebSocket to a server, as a context manager."""
    return connect(
        "ws" + server.removeprefix("http") + "/v1/connect",
        compression=None,
        max_size=None,
        open_timeout=10,
        # A server that disappears silently is noticed within ten seconds.
        ping_interval=5,
        ping_timeout=5,
        close_timeout=1,
    )


def subscribe_message(request: dict[str, Any]) -> str:
    """The message that subscribes; fields that are None are left out."""
    given = {name: value for name, value in request.items() if value is not None}
    return msgspec.json.encode({"type": "subscribe", "id": _ID, **given}).decode()


def _check(message: ServerMessage) -> Message | None:
    match message:
        case ErrorMessage(title, detail):
            raise QueryError(f"{title}: {detail}" if detail else title)
        case Pong():
            return None
        case Snapshot() | Change() | Gap() | Lag():
            return message


def _raise_if_too_slow(server: str, closed: ConnectionClosed) -> None:
    if closed.rcvd is not None and closed.rcvd.code == TOO_SLOW:
        raise RequestRefused(
            f"{server} closed the connection: changes were read too slowly",
            status=TOO_SLOW,
            remedy="read faster, use where= to get less, or when_slow='catch_up'",
        ) from None


def _name(request: dict[str, Any]) -> str:
    return str(request.get("view") or request.get("stream") or request.get("ledger"))
