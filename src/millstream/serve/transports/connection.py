"""One client's WebSocket, with its subscriptions."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from millstream.errors import MillstreamError, QueryError
from millstream.serve.connections import SubscriptionReport, Traffic
from millstream.serve.context import Context
from millstream.serve.groups.member import Member
from millstream.serve.transports.client_messages import (
    Ack,
    Nack,
    Ping,
    Subscribe,
    Unsubscribe,
    decode,
    read_identifier,
)
from millstream.serve.transports.frames import MessageAssembler, ProtocolError, has_reserved_bits
from millstream.serve.transports.membership import open_membership
from millstream.serve.views.encoding import WebSocketFormat, encode
from millstream.serve.views.served_view import ServedView
from millstream.serve.views.subscription import RowSelection, Subscription
from millstream.values.position import Position
from millstream.web.auth.caller import Caller

TOO_SLOW = 4008
_MAX_ID_LENGTH = 200
_CLOSE_SECONDS = 10.0


class Connection(WSListener):
    """One client. Everything here runs in the event loop's thread.

    Data that waits to be sent is limited: about `buffer_bytes` and one message of subscriptions,
    one pong, and `buffer_bytes` of answers. A client that sends requests without reading the
    answers is disconnected.
    """

    transport = "websocket"

    def __init__(self, context: Context, caller: Caller) -> None:
        super().__init__()
        self._context = context
        self.caller = caller
        self.address = ""
        self.traffic = Traffic()
        self._subscriptions: dict[str, tuple[Any, Subscribe]] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._deferred: dict[str, tuple[Subscribe, Position | None]] = {}  # until it has room
        self._assembler = MessageAssembler(context.settings.max_frame_bytes)
        self._snapshot_lock = asyncio.Lock()  # one large snapshot at a time
        self._is_full = False  # the client has not read `buffer_bytes`
        self._unread = 0  # bytes of answers while it is full
        self._pong: bytes | None = None  # the answer to the newest ping, while it is full
        self._is_closed = False
        self._transport: WSTransport

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        peer = transport.underlying_transport.get_extra_info("peername")
        self.address = self.address or (peer[0] if isinstance(peer, tuple) else "")
        limit = self._context.settings.buffer_bytes
        transport.underlying_transport.set_write_buffer_limits(high=limit, low=limit // 4)
        self._context.connections.add(self)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._end()

    def _end(self) -> None:
        self._is_closed = True
        self._context.connections.discard(self)
        for identifier in self._identifiers():
            self._drop(identifier)

    def _identifiers(self) -> set[str]:
        return {*self._opening, *self._subscriptions, *self._deferred}

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full, self._unread = False, 0
        if self._pong is not None:
            pong, self._pong = self._pong, None
            self._send_pong(pong)
        for identifier in list(self._deferred):
            if not self._is_full:
                self._open(*self._deferred.pop(identifier))
        for identifier in list(self._subscriptions):
            self._send_messages(identifier)

    def send_positions(self) -> None:
        """Send the position of each subscription whose filter has hidden all recent changes."""
        for subscription, _ in self._subscriptions.values():
            if not self._is_full and (message := subscription.refresh()) is not None:
                self._send(message)

    def subscriptions(self) -> list[SubscriptionReport]:
        return [
            SubscriptionReport(
                subscription.served.kind,
                subscription.served.name,
                request.where or None,
                subscription.behind,
            )
            for subscription, request in self._subscriptions.values()
            if not isinstance(subscription, Member)
        ]

    def close(self, code: int | WSCloseCode, reason: str) -> None:
        """Close the connection, and tell the client why."""
        if self._is_closed:
            return
        self._end()
        self._transport.send_close(code, reason.encode())  # type: ignore[arg-type]
        self._transport.disconnect()
        # Do not wait for a client that does not read the rest.
        asyncio.get_running_loop().call_later(
            _CLOSE_SECONDS, self._transport.underlying_transport.abort
        )

    def is_user_specific_pong(self, frame: WSFrame) -> bool:
        return frame.msg_type == WSMsgType.PONG and not has_reserved_bits(frame)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if self._is_closed:
            return
        try:
            self._handle_frame(transport, frame)
        except ProtocolError as error:
            self.close(error.code, error.reason)

    def _handle_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if has_reserved_bits(frame):
            raise ProtocolError(WSCloseCode.PROTOCOL_ERROR, "no extension was agreed on")
        match frame.msg_type:
            case WSMsgType.PING:
                self._send_pong(frame.get_payload_as_bytes())
            case WSMsgType.CLOSE:
                self._end()
                code = frame.get_close_code()
                transport.send_close(WSCloseCode.OK if code == WSCloseCode.NO_INFO else code)
                transport.disconnect()
            case WSMsgType.TEXT | WSMsgType.BINARY | WSMsgType.CONTINUATION:
                message = self._assembler.add(frame)
                if message is not None:
                    self._handle_message(message)

    def _handle_message(self, message: bytes) -> None:
        try:
            request = decode(message)
        except msgspec.MsgspecError as error:
            self._error(
                read_identifier(message), "Bad Request", f"cannot read the message: {error}"
            )
            return
        except RecursionError:
            raise ProtocolError(WSCloseCode.POLICY_VIOLATION, "the JSON is too deep") from None
        except UnicodeDecodeError:  # of a binary message, which is JSON too
            raise ProtocolError(WSCloseCode.INVALID_TEXT, "the text is not UTF-8") from None
        match request:
            case Subscribe():
                self._subscribe(request)
            case Ack(str(identifier), str(message_id)):
                if (member := self._member(identifier)) is not None:
                    member.ack(message_id)
            case Nack():
                if (member := self._member(request.id)) is not None:
                    member.nack(request.message, request.reason)
            case Unsubscribe():
                if (member := self._member(request.id)) is not None:
                    member.hand_back()
                self._drop(request.id)
                self._send(encode({"type": "unsubscribed", "id": request.id}))
            case Ping():
                self._send(b'{"type":"pong"}')

    def _subscribe(self, request: Subscribe) -> None:
        try:
            self._check(request)
            after = Position.parse(request.after) if request.after and not request.group else None
        except MillstreamError as error:
            self._error(request.id, "Bad Request", str(error))
            return
        self._drop(request.id)
        if self._is_full:  # else a snapshot would be held for a client that does not read
            self._deferred[request.id] = (request, after)
            return
        self._open(request, after)

    def _member(self, identifier: str) -> Member | None:
        held = self._subscriptions.get(identifier)
        return held[0] if held is not None and isinstance(held[0], Member) else None

    async def _join(self, request: Subscribe) -> None:
        try:
            async with open_membership(
                self._context, self.caller, lambda: self._send_messages(request.id), request
            ) as member:
                self._subscriptions[request.id] = (member, request)
                self._send_messages(request.id)
                await asyncio.Event().wait()
        except MillstreamError as error:
            self._fail(request.id, "Bad Request", str(error))
        except TimeoutError:
            self._fail(request.id, "Service Unavailable", "Kafka does not answer; try again")

    def _open(self, request: Subscribe, after: Position | None) -> None:
        if request.group is not None:
            self._opening[request.id] = asyncio.get_running_loop().create_task(self._join(request))
            return
        if request.view is not None:
            try:
                self._begin(request, self._context.view(request.view, self.caller), after)
            except MillstreamError as error:
                self._error(request.id, "Bad Request", str(error))
            return
        # Other topics are read only while clients use them, so reading may have to start first.
        task = asyncio.get_running_loop().create_task(self._subscribe_on_demand(request, after))
        self._opening[request.id] = task

    def _check(self, request: Subscribe) -> None:
        if (request.view, request.stream, request.ledger).count(None) != 2:
            raise QueryError("a subscription names either a view, or a stream, or a view's ledger")
        if len(request.id) > _MAX_ID_LENGTH:
            raise QueryError(f"the id is longer than {_MAX_ID_LENGTH} characters")
        if request.limit is not None and request.limit < 0:
            raise QueryError(f"limit {request.limit} is negative")
        limit = self._context.settings.max_subscriptions
        identifiers = self._identifiers()
        if request.id not in identifiers and len(identifiers) >= limit:
            raise QueryError(
                f"this connection has {limit} subscriptions already",
                remedy="unsubscribe from one, or open another connection",
            )

    async def _subscribe_on_demand(self, request: Subscribe, after: Position | None) -> None:
        kind = "stream" if request.stream is not None else "ledger"
        try:
            async with self._context.read_on_demand(
                kind, request.stream or request.ledger or "", self.caller
            ) as served:
                self._begin(request, served, after)
                await asyncio.Event().wait()  # until the subscription is dropped
        except MillstreamError as error:
            self._fail(request.id, "Bad Request", str(error))
        except TimeoutError:
            self._fail(request.id, "Service Unavailable", "Kafka does not answer; try again")

    def _fail(self, identifier: str, title: str, detail: str) -> None:
        """Report that a subscription could not start."""
        if self._opening.get(identifier) is asyncio.current_task():
            del self._opening[identifier]
        self._error(identifier, title, detail)

    def _begin(self, request: Subscribe, served: ServedView, after: Position | None) -> None:
        selection = RowSelection(
            request.where or None,
            tuple(request.select) if request.select else None,
            request.lineage,
            request.limit,
            self._context.visibility(served.kind, served.name, self.caller),
        )
        identifier = request.id
        subscription = Subscription(
            served,
            selection,
            WebSocketFormat(identifier),
            lambda: self._send_messages(identifier),
            self._context.replay,
            after=after,
            snapshot_lock=self._snapshot_lock,
        )
        self._subscriptions[identifier] = (subscription, request)
        self._send_messages(identifier)

    def _drop(self, identifier: str) -> None:
        self._deferred.pop(identifier, None)
        if (held := self._subscriptions.pop(identifier, None)) is not None:
            held[0].close()
        if (task := self._opening.pop(identifier, None)) is not None:
            task.cancel()

    def _send_messages(self, identifier: str) -> None:
        """Send messages of one subscription until there are none, or the client has no room."""
        held = self._subscriptions.get(identifier)
        if held is None:
            return
        subscription, request = held
        while not self._is_full and not self._is_closed:
            messages = subscription.next_messages()
            if not messages:
                return
            self.traffic.add(messages)
            for message in messages:
                self._transport.send(WSMsgType.TEXT, message)
            if subscription.has_more:
                return
        if subscription.behind and not self._is_closed:
            subscription.mark_slow()
            if request.when_slow == "disconnect":
                self.close(TOO_SLOW, "the client is too slow")

    def _send(self, message: bytes) -> None:
        """Send an answer; disconnect the client if it leaves too many of them unread."""
        if self._is_closed:
            return
        if self._is_full:
            self._unread += len(message)
            if self._unread > self._context.settings.buffer_bytes:
                self.close(TOO_SLOW, "the client does not read its answers")
                return
        self.traffic.add((message,))
        self._transport.send(WSMsgType.TEXT, message)

    def _send_pong(self, payload: bytes) -> None:
        if self._is_full:  # RFC 6455, 5.5.3: the newest ping is the one to answer
            self._pong = payload
        else:
            self._transport.send_pong(payload)

    def _error(self, identifier: str | None, title: str, detail: str) -> None:
        self._send(encode({"type": "error", "id": identifier, "title": title, "detail": detail}))
