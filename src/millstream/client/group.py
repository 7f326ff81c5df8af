"""Messages of a group, over a WebSocket that follows redirects and reconnects."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from decimal import Decimal
from types import TracebackType
from typing import Any, Literal, Self

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from millstream.client.backoff import Backoff
from millstream.client.changes import (
    authenticate_message,
    open_socket,
    raise_if_final,
    raise_if_refused,
    subscribe_message,
)
from millstream.client.credentials import Credentials
from millstream.client.messages import AskToken, Authenticated, ErrorMessage, Pong
from millstream.client.servers import Servers
from millstream.errors import NotReachable, QueryError

_log = logging.getLogger(__name__)
_UNSUBSCRIBE = msgspec.json.encode({"type": "unsubscribe", "id": "1"}).decode()
_MAX_REASON = 1_000  # characters


class _Delivered(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    message: str
    attempt: int
    position: str
    op: Literal["upsert", "delete"]
    key: list[Any] | None = None
    row: dict[str, Any] | None = None


class _Redirect(msgspec.Struct, frozen=True, tag_field="type", tag="redirect"):
    url: str | None = None


class _Unsubscribed(msgspec.Struct, frozen=True, tag_field="type", tag="unsubscribed"):
    pass


_Received = _Delivered | _Redirect | _Unsubscribed | AskToken | Authenticated | ErrorMessage | Pong
_decode = msgspec.json.Decoder(_Received).decode
_decode_exactly = msgspec.json.Decoder(_Received, float_hook=Decimal).decode


class GroupMessage:
    """A message that this member has to acknowledge.

    As a context manager, it is acknowledged when the block ends, and refused when the block raises.
    """

    def __init__(self, delivered: _Delivered, socket: ClientConnection) -> None:
        self.id = delivered.message
        self.key = delivered.key
        self.row = delivered.row  # None: deleted
        self.op = delivered.op
        self.attempt = delivered.attempt  # 1 for the first delivery
        self.position = delivered.position
        self.is_answered = False
        self._socket = socket

    async def ack(self) -> None:
        """Report that the message is handled: no member gets it again."""
        await self._answer({"type": "ack", "id": "1", "message": self.id})

    async def nack(self, reason: str = "") -> None:
        """Report that the message could not be handled: a member gets it again, after a pause."""
        reason = reason[:_MAX_REASON]
        await self._answer({"type": "nack", "id": "1", "message": self.id, "reason": reason})

    async def _answer(self, answer: dict[str, str]) -> None:
        if self.is_answered:
            return
        self.is_answered = True
        # Without the connection the message is not this member's any more: another one gets it.
        with contextlib.suppress(ConnectionClosed):
            await self._socket.send(msgspec.json.encode(answer).decode())

    async def finish(self, error: BaseException | None) -> None:
        """Acknowledge, or refuse with the error. Cancellation does neither: nothing is wrong."""
        if error is None:
            await self.ack()
        elif isinstance(error, Exception):
            await self.nack(f"{type(error).__name__}: {error}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.finish(error)


class GroupMessages:
    """An endless iterator of messages: `async for message in client.group("billing", "orders")`.

    Each message is acknowledged when the next one is asked for, unless it was answered before. In
    an `async with` block, an exception refuses the current message, and the end of the block
    acknowledges it. Without such a block, a message whose loop ends early is not acknowledged:
    another member gets it.
    """

    def __init__(
        self,
        servers: Servers,
        request: dict[str, Any],
        *,
        credentials: Credentials,
        backoff: Backoff,
        attempts: int | None,
        prefetch: int,
        auto_ack: bool,
    ) -> None:
        self._servers = servers
        self._request = {**request, "max_pending": prefetch}
        self._credentials = credentials
        self._backoff = backoff
        self._attempts = attempts
        self._prefetch = prefetch
        self._auto_ack = auto_ack
        # A ledger's amounts are added up, so they must not be rounded to floats.
        self._decode = _decode_exactly if request.get("ledger") else _decode
        self._current: GroupMessage | None = None
        self._redirected_to: str | None = None
        self._is_entered = False  # in an `async with` block, which closes it
        self._reading = asyncio.Lock()
        self._messages = self._follow()

    def __aiter__(self) -> AsyncGenerator[GroupMessage, None]:
        return self._each()

    async def __anext__(self) -> GroupMessage:
        if self._current is not None and self._auto_ack:
            await self._current.ack()
        self._current = None
        self._current = await self._next()
        return self._current

    async def handle(self, handler: Callable[[GroupMessage], Awaitable[object]]) -> None:
        """Call `handler` for each message, for up to `prefetch` of them at once; runs for ever.

        A message is acknowledged when its handler returns, and refused when it raises.
        """
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._prefetch):
                tasks.create_task(self._handle_each(handler))

    async def close(self) -> None:
        """Leave the group; messages that were not answered go to other members."""
        await self._messages.aclose()

    async def __aenter__(self) -> Self:
        self._is_entered = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._current is not None and self._auto_ack:
            await self._current.finish(error)
        await self.close()

    async def _each(self) -> AsyncGenerator[GroupMessage, None]:
        try:
            while True:
                yield await anext(self)
        finally:
            # The loop has ended. Without an `async with` block nobody else would leave the group.
            if not self._is_entered:
                await self.close()

    async def _handle_each(self, handler: Callable[[GroupMessage], Awaitable[object]]) -> None:
        while True:
            message = await self._next()
            try:
                async with message:
                    await handler(message)
            except Exception:
                _log.warning("message %s was refused", message.id, exc_info=True)

    async def _next(self) -> GroupMessage:
        async with self._reading:
            return await anext(self._messages)

    async def _follow(self) -> AsyncGenerator[GroupMessage, None]:
        failures = redirects = 0
        while True:
            server = self._redirected_to or self._servers.current
            self._redirected_to = None
            try:
                async with (
                    await open_socket(server, self._credentials) as socket,
                    contextlib.aclosing(self._read(socket, server)) as messages,
                ):
                    async for message in messages:
                        failures = redirects = 0
                        yield message
                reason = f"{server} closed the connection"
            except ConnectionClosed as closed:
                raise_if_final(server, closed, self._credentials)
                reason = f"{server}: {closed}"
            except (OSError, TimeoutError, InvalidHandshake) as error:
                raise_if_refused(server, error)
                reason = f"{server}: {str(error) or type(error).__name__}"
            if self._redirected_to is not None:
                redirects += 1
                # Partitions may move while members do: do not chase them in a tight loop.
                await asyncio.sleep(self._backoff.after(redirects) if redirects > 1 else 0)
                continue
            failures += 1
            if self._attempts is not None and failures >= self._attempts:
                raise NotReachable(
                    f"cannot be a member of group {self._request['group']}: {reason}",
                    remedy=f"check that a server runs on {self._servers}",
                )
            wait = self._backoff.after(failures)
            _log.info("group %s: %s; again in %.1f s", self._request["group"], reason, wait)
            self._servers.use_next()
            await asyncio.sleep(wait)

    async def _read(
        self, socket: ClientConnection, server: str
    ) -> AsyncGenerator[GroupMessage, None]:
        await socket.send(subscribe_message(self._request))
        try:
            async for raw in socket:
                match self._decode(raw):
                    case _Delivered() as delivered:
                        yield GroupMessage(delivered, socket)
                    case _Redirect(url):
                        self._redirected_to = _checked(url or server, server)
                        return
                    case AskToken() if self._credentials.can_refresh:
                        await socket.send(authenticate_message(await self._credentials.token()))
                    case ErrorMessage("Service Unavailable", detail):
                        raise OSError(detail)
                    case ErrorMessage(title, detail):
                        raise QueryError(f"{title}: {detail}" if detail else title)
        finally:
            with contextlib.suppress(ConnectionClosed):
                await socket.send(_UNSUBSCRIBE)  # hands messages back that were not answered


def _checked(url: str, server: str) -> str:
    """The address of a redirect; QueryError if it would send the login unencrypted."""
    if server.startswith("https:") and not url.startswith("https:"):
        raise QueryError(
            f"{server} redirects to {url}, which is not encrypted",
            remedy="set serve.advertised_url to an https address on each server",
        )
    return url.rstrip("/")
