"""Changes of a view or stream, over a WebSocket that reconnects."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Self, TypeVar

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from millstream.client.backoff import Backoff
from millstream.client.credentials import Credentials
from millstream.client.messages import (
    AskToken,
    Authenticated,
    Change,
    ErrorMessage,
    Gap,
    Keyed,
    Lag,
    Message,
    Pong,
    ServerMessage,
    Snapshot,
    Updated,
    decode,
    decode_exactly,
)
from millstream.client.servers import Servers
from millstream.errors import NotReachable, QueryError, RequestRefused

# Close codes of a server. After those from 4500 on, connecting again does not help.
TOO_SLOW = 4008  # for when_slow="disconnect"
EXPIRED = 4001
REVOKED = 4503
FINAL = range(4500, 5000)
_ID = "1"  # one subscription per socket

_IDLE_SECONDS = 0.001  # a shorter wait means that the message was there already
_BUSY_SECONDS = 5.0
T = TypeVar("T")

_log = logging.getLogger(__name__)
_wire_log = logging.getLogger(f"{__name__}.wire")
_wire_log.setLevel(logging.INFO)  # below, the library logs headers, and so the key


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
        credentials: Credentials | None = None,
        pages: bool = False,
    ) -> None:
        self._credentials = credentials or Credentials()
        self._servers = servers
        self._request = request
        self._backoff = backoff
        self._attempts = attempts
        # A ledger's amounts are added up, so they must not be rounded to floats.
        self._decode = decode_exactly if request.get("ledger") else decode
        self._pages = None if pages else JoinedPages()
        self._pace = ReadingPace(_name(request))
        self._socket: ClientConnection | None = None
        self._unanswered = 0  # updates that the server has not confirmed
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

    async def update(self, **fields: Any) -> None:
        """Change `where`, `select`, `when_slow`, `sample` or a `max_…` while you follow.

        None is the default. With another `where`, rows that come into sight are changes, and those
        that leave it are deletes; with another `select`, a snapshot comes. The iteration raises
        QueryError if the server refuses the update.
        """
        self._request |= fields
        if self._socket is not None:
            self._unanswered += 1
            text = msgspec.json.encode({"type": "update", "id": _ID, **fields}).decode()
            with contextlib.suppress(ConnectionClosed):  # the next subscription has the fields
                await self._socket.send(text)
        elif not {"where", "select"}.isdisjoint(fields):
            self._request["after"] = None  # the rows are no longer those of the filter

    def _check(self, message: ServerMessage) -> Message | None:
        match message:
            case ErrorMessage(detail=detail, final=False):
                _log.warning(
                    "following %s: %s; the server tries again", _name(self._request), detail
                )
                return None
            case ErrorMessage(title, detail):
                raise QueryError(f"{title}: {detail}" if detail else title)
            case Updated():
                self._unanswered = max(0, self._unanswered - 1)
                return None
            case Pong() | AskToken() | Authenticated():
                return None
            case Snapshot() | Change() | Gap() | Lag():
                return message

    def _accept(self, message: Message) -> Message | None:
        """Keep the position; the message, or None if it is a page that is not the last one."""
        whole: Message | None = message
        match message:
            case Snapshot():
                if self._pages is not None:
                    whole = self._pages.add(message)
                if message.last:  # before, resuming from its position would miss the other pages
                    self._request["after"] = message.position
            case Change():
                self._request["after"] = message.position
            case Lag(growing=growing, warning=warning) if growing or warning:
                self._pace.warn(message)
        return whole

    async def _follow(self) -> AsyncGenerator[Message, None]:
        failures = 0
        while True:
            server = self._servers.current
            try:
                async with await open_socket(server, self._credentials) as socket:
                    if self._unanswered:  # we do not know which rows the filter has brought
                        self._unanswered, self._request["after"] = 0, None
                    await socket.send(subscribe_message(self._request))
                    self._socket = socket
                    while True:
                        raw = await self._pace.measure(socket.recv())
                        decoded = self._decode(raw)
                        if isinstance(decoded, AskToken) and self._credentials.can_refresh:
                            await socket.send(authenticate_message(await self._credentials.token()))
                        message = self._check(decoded)
                        if message is None or (whole := self._accept(message)) is None:
                            continue
                        failures = 0
                        yield whole
            except ConnectionClosed as closed:
                raise_if_final(server, closed, self._credentials)
                reason = f"{server}: {closed}"
            except (OSError, TimeoutError, InvalidHandshake) as error:
                raise_if_refused(server, error)
                reason = f"{server}: {str(error) or type(error).__name__}"
            finally:
                self._socket = None
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


class JoinedPages:
    """Puts the pages of a snapshot together."""

    def __init__(self) -> None:
        self._rows: list[Keyed] = []

    def add(self, page: Snapshot) -> Snapshot | None:
        """The whole snapshot, if this is its last page."""
        if page.page == 1:
            self._rows = []
        self._rows += page.rows
        if not page.last:
            return None
        rows, self._rows = self._rows, []
        return msgspec.structs.replace(page, rows=rows, page=1)


class ReadingPace:
    """Logs a warning when messages come faster than the program reads them."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._idle_at = clock()  # when the program last waited for a message
        self._warned = False

    async def measure(self, receive: Awaitable[T]) -> T:
        """What `receive` gives. A program that never waits for it does not keep up."""
        began = self._clock()
        received = await receive
        now = self._clock()
        if now - began > _IDLE_SECONDS:
            self._idle_at, self._warned = now, False
        elif now - self._idle_at > _BUSY_SECONDS and not self._warned:
            self._warned = True
            _log.warning(
                "following %s: messages have waited for %.0f s without a break; read faster, or "
                "ask for fewer with where=, max_rate= or when_slow='conflate'",
                self._name,
                now - self._idle_at,
            )
        return received

    def warn(self, lag: Lag) -> None:
        """Log what the server says."""
        _log.warning(
            "following %s: %d changes and %.1f s behind%s%s",
            self._name,
            lag.behind,
            lag.seconds,
            ", and it grows" if lag.growing else "",
            f"; {lag.warning}" if lag.warning else "",
        )


async def open_socket(server: str, credentials: Credentials) -> connect:
    """A WebSocket to a server, as a context manager."""
    return connect(
        "ws" + server.removeprefix("http") + "/v1/connect",
        additional_headers=await credentials.headers(),
        ssl=credentials.ssl_context(),
        compression=None,
        max_size=None,
        open_timeout=10,
        # A server that disappears silently is noticed within ten seconds.
        ping_interval=5,
        ping_timeout=5,
        close_timeout=1,
        proxy=None,
        logger=_wire_log,
    )


def authenticate_message(token: str) -> str:
    """The message with a fresh token."""
    return msgspec.json.encode({"type": "authenticate", "token": token}).decode()


def subscribe_message(request: dict[str, Any]) -> str:
    """The message that subscribes; fields that are None are left out."""
    given = {name: value for name, value in request.items() if value is not None}
    return msgspec.json.encode({"type": "subscribe", "id": _ID, **given}).decode()


def raise_if_final(server: str, closed: ConnectionClosed, credentials: Credentials) -> None:
    """RequestRefused if connecting again would not help."""
    code, said = (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd is not None else (0, "")
    if code == TOO_SLOW:
        raise RequestRefused(
            f"{server} closed the connection: changes were read too slowly",
            status=TOO_SLOW,
            remedy="read faster, use where= to get less, or when_slow='conflate'",
        ) from None
    if code == EXPIRED and not credentials.can_refresh:
        raise RequestRefused(
            f"{server} closed the connection: {said}",
            status=code,
            remedy="give a function as key=, which returns the current token",
        ) from None
    if code in FINAL:
        raise RequestRefused(
            f"{server} closed the connection: {said}",
            status=code,
            remedy="use a valid key or token" if code == REVOKED else "",
        ) from None


def raise_if_refused(server: str, error: Exception) -> None:
    """RequestRefused if the server does not accept the login."""
    if isinstance(error, InvalidStatus) and error.response.status_code in (401, 403):
        raise RequestRefused(
            f"{server}: {_detail(error.response.body)}",
            status=error.response.status_code,
            remedy="give a key or token that may read this: key=…",
        ) from None


def _detail(body: bytes | bytearray | None) -> str:
    try:
        return str(msgspec.json.decode(body or b"")["detail"])
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        return "the login was refused"


def _name(request: dict[str, Any]) -> str:
    kinds = ("view", "stream", "ledger", "query", "sql")
    return str(next(request[kind] for kind in kinds if request.get(kind)))
