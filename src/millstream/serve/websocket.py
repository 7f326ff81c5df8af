"""The WebSocket: many subscriptions on one connection, by picows on uvicorn's port."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from picows import (
    WSAutoPingStrategy,
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
)
from picows.picows import WSProtocol  # type: ignore[attr-defined]

from millstream.errors import MillstreamError, QueryError
from millstream.position import Position
from millstream.serve.live import Live
from millstream.serve.shape import SocketFrame, encode
from millstream.serve.state import State
from millstream.serve.subscription import Asked, Subscription

logger = logging.getLogger(__name__)
PATH = "/v1/connect"
TOO_SLOW = 4008
_LONGEST_ID = 200
_LINGER_SECONDS = 10.0


class Subscribe(msgspec.Struct, tag_field="type", tag="subscribe", forbid_unknown_fields=True):
    id: str
    view: str | None = None
    stream: str | None = None
    ledger: str | None = None  # of the view of that name
    where: str | None = None
    select: list[str] | None = None
    after: str | None = None
    limit: int | None = None
    lineage: bool = False
    when_slow: Literal["catch_up", "disconnect"] = "catch_up"


class Unsubscribe(msgspec.Struct, tag_field="type", tag="unsubscribe"):
    id: str


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    pass


class Ack(msgspec.Struct, tag_field="type", tag="ack"):
    """Taken and not needed: a client's position is its own to keep."""


_decode = msgspec.json.Decoder(Subscribe | Unsubscribe | Ping | Ack).decode


class Connection(WSListener):
    """One client. Everything here runs in the event loop's thread."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self._state = state
        self._subscriptions: dict[str, tuple[Subscription, Subscribe]] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._fragments: list[bytes] = []
        self._full = False
        self._closed = False
        self._transport: WSTransport

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        limit = self._state.settings.buffer_bytes
        transport.underlying_transport.set_write_buffer_limits(high=limit, low=limit // 4)
        self._state.connections.add(self)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._leave()

    def _leave(self) -> None:
        self._closed = True
        self._state.connections.discard(self)
        for identifier in [*self._opening, *self._subscriptions]:
            self._drop(identifier)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        for identifier in list(self._subscriptions):
            self._pump(identifier)

    def refresh(self) -> None:
        """Tell how far each subscription has come that had nothing to send."""
        for subscription, _ in self._subscriptions.values():
            if not self._full and (message := subscription.refresh()) is not None:
                self._send(message)

    def close(self, code: int | WSCloseCode, reason: str) -> None:
        """End the connection, telling the client why."""
        if self._closed:
            return
        self._leave()
        self._transport.send_close(code, reason.encode())  # type: ignore[arg-type]
        self._transport.disconnect()
        # Who does not read what is left, and the reason at its end, is not waited for.
        asyncio.get_running_loop().call_later(
            _LINGER_SECONDS, self._transport.underlying_transport.abort
        )

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        match frame.msg_type:
            case WSMsgType.PING:
                transport.send_pong(frame.get_payload_as_bytes())
            case WSMsgType.CLOSE:
                self._leave()
                code = frame.get_close_code()
                transport.send_close(WSCloseCode.OK if code == WSCloseCode.NO_INFO else code)
                transport.disconnect()
            case WSMsgType.TEXT | WSMsgType.BINARY | WSMsgType.CONTINUATION:
                self._fragments.append(frame.get_payload_as_bytes())
                if sum(map(len, self._fragments)) > self._state.settings.max_frame_bytes:
                    self.close(WSCloseCode.MESSAGE_TOO_BIG, "the message is too big")
                elif frame.fin:
                    message = b"".join(self._fragments)
                    self._fragments.clear()
                    self._heed(message)

    def _heed(self, message: bytes) -> None:
        if self._closed:
            return
        try:
            asked = _decode(message)
        except msgspec.MsgspecError as error:
            self._error(_identifier(message), "Bad Request", f"cannot read the message: {error}")
            return
        match asked:
            case Subscribe():
                self._subscribe(asked)
            case Unsubscribe():
                self._drop(asked.id)
                self._send(encode({"type": "unsubscribed", "id": asked.id}))
            case Ping():
                self._send(b'{"type":"pong"}')

    def _subscribe(self, asked: Subscribe) -> None:
        try:
            self._check(asked)
            after = Position.parse(asked.after) if asked.after else None
        except MillstreamError as error:
            self._error(asked.id, "Bad Request", str(error))
            return
        self._drop(asked.id)
        if asked.view is not None:
            self._begin_view(asked, asked.view, after)
            return
        # Other topics are read only while someone wants them, so that it may have to begin first.
        task = asyncio.get_running_loop().create_task(self._begin_on_demand(asked, after))
        self._opening[asked.id] = task

    def _check(self, asked: Subscribe) -> None:
        if (asked.view, asked.stream, asked.ledger).count(None) != 2:
            raise QueryError("a subscription names either a view, or a stream, or a view's ledger")
        if len(asked.id) > _LONGEST_ID:
            raise QueryError(f"the id is longer than {_LONGEST_ID} characters")
        if asked.limit is not None and asked.limit < 0:
            raise QueryError(f"limit {asked.limit} is negative")
        most = self._state.settings.max_subscriptions
        held = self._opening.keys() | self._subscriptions.keys()
        if asked.id not in held and len(held) >= most:
            raise QueryError(
                f"this connection has {most} subscriptions already",
                remedy="unsubscribe from one, or open another connection",
            )

    def _begin_view(self, asked: Subscribe, view: str, after: Position | None) -> None:
        try:
            self._begin(asked, self._state.view(view), after)
        except MillstreamError as error:
            self._error(asked.id, "Bad Request", str(error))

    async def _begin_on_demand(self, asked: Subscribe, after: Position | None) -> None:
        kind = "stream" if asked.stream is not None else "ledger"
        try:
            async with self._state.read_on_demand(kind, asked.stream or asked.ledger or "") as live:
                self._begin(asked, live, after)
                await asyncio.Event().wait()  # until the subscription is dropped
        except MillstreamError as error:
            self._error(asked.id, "Bad Request", str(error))
        except TimeoutError:
            self._error(asked.id, "Service Unavailable", "Kafka does not answer; try again")

    def _begin(self, asked: Subscribe, live: Live, after: Position | None) -> None:
        wanted = Asked(
            asked.where or None,
            tuple(asked.select) if asked.select else None,
            asked.lineage,
            asked.limit,
        )
        identifier = asked.id
        subscription = Subscription(
            live,
            wanted,
            SocketFrame(identifier),
            lambda: self._pump(identifier),
            self._state.replay,
            after=after,
        )
        self._subscriptions[identifier] = (subscription, asked)
        self._pump(identifier)

    def _drop(self, identifier: str) -> None:
        if (held := self._subscriptions.pop(identifier, None)) is not None:
            held[0].close()
        if (task := self._opening.pop(identifier, None)) is not None:
            task.cancel()

    def _pump(self, identifier: str) -> None:
        """Send what there is, as long as the client takes it."""
        held = self._subscriptions.get(identifier)
        if held is None:
            return
        subscription, asked = held
        while not self._full and not self._closed:
            messages = subscription.take()
            if not messages:
                return
            for message in messages:
                self._transport.send(WSMsgType.TEXT, message)
        if subscription.behind and not self._closed:
            subscription.stall()
            if asked.when_slow == "disconnect":
                self.close(TOO_SLOW, "the client is too slow")

    def _send(self, message: bytes) -> None:
        if not self._closed:
            self._transport.send(WSMsgType.TEXT, message)

    def _error(self, identifier: str | None, title: str, detail: str) -> None:
        self._send(encode({"type": "error", "id": identifier, "title": title, "detail": detail}))


class _Identified(msgspec.Struct):
    id: str | None = None


def _identifier(message: bytes) -> str | None:
    """The id in a message that is otherwise wrong, so that the client knows which one it was."""
    try:
        return msgspec.json.decode(message, type=_Identified).id
    except msgspec.MsgspecError:
        return None


def protocol(state: State) -> type[Any]:
    """The class that uvicorn hands a connection to when it becomes a WebSocket."""

    def accept(request: WSUpgradeRequest) -> Connection | WSUpgradeResponseWithListener:
        path = request.path.decode("latin-1").partition("?")[0]
        if path != PATH:
            return _refuse(404, f"there is no WebSocket at {path}; it is at {PATH}")
        if not _same_origin(request, state.settings.origins):
            return _refuse(403, "a page of another origin may not connect")
        if not state.ready:
            return _refuse(503, "the server is still reading the log")
        return Connection(state)

    class Upgraded(WSProtocol):  # type: ignore[misc]
        def __init__(self, config: Any, server_state: Any, app_state: Any) -> None:
            ping = state.settings.ping_seconds
            super().__init__(
                None, None, False, accept, logger, True, 10.0, True, ping, ping,
                WSAutoPingStrategy.PING_WHEN_IDLE, True, state.settings.max_frame_bytes, None, 2048,
            )  # fmt: skip

        def data_received(self, data: bytes) -> None:
            # uvicorn hands over the request that it has read already; picows reads by buffer.
            while data:
                buffer = self.get_buffer(-1)
                size = min(len(buffer), len(data))
                buffer[:size] = data[:size]
                self.buffer_updated(size)
                data = data[size:]

    return Upgraded


def _refuse(status: int, why: str) -> WSUpgradeResponseWithListener:
    return WSUpgradeResponseWithListener(
        WSUpgradeResponse.create_error_response(status, why.encode()), None
    )


def _same_origin(request: WSUpgradeRequest, others: list[str]) -> bool:
    """Whether the page that connects is ours; what is no browser sends no origin."""
    origin = request.headers.get("origin")
    if origin is None or origin in others:
        return True
    return urlsplit(origin).netloc == request.headers.get("host")
