"""The WebSocket: many subscriptions on one connection, by picows on uvicorn's port."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Literal

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
from millstream.serve.context import State
from millstream.serve.transports.frames import Assembly, ProtocolError, is_extended
from millstream.serve.views.encoding import SocketFrame, encode
from millstream.serve.views.served_view import Live
from millstream.serve.views.subscription import Asked, Subscription
from millstream.values.position import Position
from millstream.web.allowed_hosts import is_same_origin

_log = logging.getLogger(__name__)
PATH = "/v1/connect"
TOO_SLOW = 4008
_LONGEST_ID = 200
_LINGER_SECONDS = 10.0


class Subscribe(msgspec.Struct, tag_field="type", tag="subscribe", forbid_unknown_fields=True):
    """Asks for a view, a stream or a ledger: a snapshot first, or what came after `after`."""

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
    """Ends a subscription."""

    id: str


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    """Asks for a pong: browsers cannot send the WebSocket's own pings."""


class Ack(msgspec.Struct, tag_field="type", tag="ack"):
    """Accepted and ignored: a client keeps its position itself."""


RECEIVED = (Subscribe, Unsubscribe, Ping, Ack)
"""Messages that a client may send."""

_decode = msgspec.json.Decoder(Subscribe | Unsubscribe | Ping | Ack).decode


class Connection(WSListener):
    """One client. Everything here runs in the event loop's thread.

    What waits to be sent to it is bounded: about `buffer_bytes` and one message of subscriptions,
    one pong, and `buffer_bytes` of answers. Who asks on without reading answers is disconnected.
    """

    def __init__(self, state: State) -> None:
        super().__init__()
        self._state = state
        self._subscriptions: dict[str, tuple[Subscription, Subscribe]] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._deferred: dict[str, tuple[Subscribe, Position | None]] = {}  # while it is full
        self._assembly = Assembly(state.settings.max_frame_bytes)
        self._turn = asyncio.Lock()  # of the subscription that has a large snapshot
        self._full = False
        self._unread = 0  # bytes of answers since it is full
        self._pong: bytes | None = None  # the answer to the newest ping, while it is full
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
        for identifier in self._held():
            self._drop(identifier)

    def _held(self) -> set[str]:
        return {*self._opening, *self._subscriptions, *self._deferred}

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full, self._unread = False, 0
        if self._pong is not None:
            pong, self._pong = self._pong, None
            self._send_pong(pong)
        for identifier in list(self._deferred):
            if not self._full:
                self._open(*self._deferred.pop(identifier))
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

    def is_user_specific_pong(self, frame: WSFrame) -> bool:
        return frame.msg_type == WSMsgType.PONG and not is_extended(frame)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if self._closed:
            return
        try:
            self._take(transport, frame)
        except ProtocolError as error:
            self.close(error.code, error.reason)

    def _take(self, transport: WSTransport, frame: WSFrame) -> None:
        if is_extended(frame):
            raise ProtocolError(WSCloseCode.PROTOCOL_ERROR, "no extension was agreed on")
        match frame.msg_type:
            case WSMsgType.PING:
                self._send_pong(frame.get_payload_as_bytes())
            case WSMsgType.CLOSE:
                self._leave()
                code = frame.get_close_code()
                transport.send_close(WSCloseCode.OK if code == WSCloseCode.NO_INFO else code)
                transport.disconnect()
            case WSMsgType.TEXT | WSMsgType.BINARY | WSMsgType.CONTINUATION:
                message = self._assembly.add(frame)
                if message is not None:
                    self._answer(message)

    def _answer(self, message: bytes) -> None:
        try:
            asked = _decode(message)
        except msgspec.MsgspecError as error:
            self._error(_identifier(message), "Bad Request", f"cannot read the message: {error}")
            return
        except RecursionError:
            raise ProtocolError(WSCloseCode.POLICY_VIOLATION, "the JSON is too deep") from None
        except UnicodeDecodeError:  # of a binary message, which is JSON too
            raise ProtocolError(WSCloseCode.INVALID_TEXT, "the text is not UTF-8") from None
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
        if self._full:  # a snapshot for each would be held for who does not read
            self._deferred[asked.id] = (asked, after)
            return
        self._open(asked, after)

    def _open(self, asked: Subscribe, after: Position | None) -> None:
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
        held = self._held()
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
            self._fail(asked.id, "Bad Request", str(error))
        except TimeoutError:
            self._fail(asked.id, "Service Unavailable", "Kafka does not answer; try again")

    def _fail(self, identifier: str, title: str, detail: str) -> None:
        """Report that a subscription could not begin, which is then none."""
        if self._opening.get(identifier) is asyncio.current_task():
            del self._opening[identifier]
        self._error(identifier, title, detail)

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
            turn=self._turn,
        )
        self._subscriptions[identifier] = (subscription, asked)
        self._pump(identifier)

    def _drop(self, identifier: str) -> None:
        self._deferred.pop(identifier, None)
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
            if subscription.has_more:
                return
        if subscription.behind and not self._closed:
            subscription.stall()
            if asked.when_slow == "disconnect":
                self.close(TOO_SLOW, "the client is too slow")

    def _send(self, message: bytes) -> None:
        """Send an answer, unless the client has left too many of them unread."""
        if self._closed:
            return
        if self._full:
            self._unread += len(message)
            if self._unread > self._state.settings.buffer_bytes:
                self.close(TOO_SLOW, "the client does not read its answers")
                return
        self._transport.send(WSMsgType.TEXT, message)

    def _send_pong(self, payload: bytes) -> None:
        if self._full:  # RFC 6455, 5.5.3: the newest ping is the one to answer
            self._pong = payload
        else:
            self._transport.send_pong(payload)

    def _error(self, identifier: str | None, title: str, detail: str) -> None:
        self._send(encode({"type": "error", "id": identifier, "title": title, "detail": detail}))


class _Identified(msgspec.Struct):
    id: str | None = None


def _identifier(message: bytes) -> str | None:
    """The id in a message that is otherwise wrong, so that the client knows which one it was."""
    try:
        return msgspec.json.decode(message, type=_Identified).id
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def protocol(state: State) -> type[Any]:
    """The class that uvicorn hands a connection to when it becomes a WebSocket."""

    def accept(request: WSUpgradeRequest) -> Connection | WSUpgradeResponseWithListener:
        path = request.path.decode("latin-1").partition("?")[0]
        if path != PATH:
            return _refuse(404, f"there is no WebSocket at {path}; it is at {PATH}")
        if not _may_connect(request, state.settings.origins):
            return _refuse(403, "a page of another origin may not connect")
        if not state.ready:
            return _refuse(503, "the server is still reading the log")
        return Connection(state)

    class Upgraded(WSProtocol):  # type: ignore[misc]
        leave: Callable[[], None]  # for who counts connections

        def __init__(self, config: Any, server_state: Any, app_state: Any) -> None:
            ping = state.settings.ping_seconds
            super().__init__(
                None, None, False, accept, _log, True, 10.0, True, ping, ping,
                WSAutoPingStrategy.PING_WHEN_IDLE,
                False,  # answer no pings: we do, and count what is not read
                state.settings.max_frame_bytes, None, 2048,
            )  # fmt: skip

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self.leave()

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


def _may_connect(request: WSUpgradeRequest, others: list[str]) -> bool:
    """Whether the page that connects is ours, or one that the settings allow."""
    origin = request.headers.get("origin", "")
    return origin in others or is_same_origin(origin, request.headers.get("host", ""))
