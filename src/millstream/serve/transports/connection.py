"""One client's WebSocket, with its subscriptions."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import msgspec
from msgspec import UNSET
from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from millstream.errors import LogError, MillstreamError, QueryError
from millstream.serve.connections import SERVICE_RESTART, SubscriptionReport, Traffic
from millstream.serve.context import Context
from millstream.serve.groups.member import Member
from millstream.serve.http import problem_of
from millstream.serve.subscriptions.lag import DISCONNECT_SECONDS
from millstream.serve.subscriptions.pace import TokenBucket
from millstream.serve.transports.client_messages import (
    Ack,
    Authenticate,
    Nack,
    Pause,
    Ping,
    Resume,
    Subscribe,
    Unsubscribe,
    Update,
    decode,
    read_identifier,
)
from millstream.serve.transports.frames import MessageAssembler, ProtocolError, has_reserved_bits
from millstream.serve.transports.message_source import (
    MessageSource,
    Subscriber,
    open_source,
)
from millstream.serve.views.encoding import encode
from millstream.values.clock import to_iso
from millstream.web.auth.caller import Caller
from millstream.web.auth.live_logins import LiveLogin
from millstream.web.problem import Problem

TOO_SLOW = 4008
_MAX_ID_LENGTH = 200
_CLOSE_SECONDS = 10.0
_TURN_BYTES = 65_536
_MIN_BYTES_PER_SECOND = 1_000


class Connection(WSListener):
    """One client. Everything here runs in the event loop's thread.

    Data that waits to be sent is limited: about `buffer_bytes` and one message of subscriptions,
    one pong, and `buffer_bytes` of answers. A client that sends requests without reading the
    answers is disconnected.
    """

    transport = "websocket"

    def __init__(self, context: Context, caller: Caller, address: str = "") -> None:
        super().__init__()
        self._context = context
        self.caller = caller
        self.address = address
        self._login: LiveLogin | None = None  # while connected
        self._renewal: asyncio.Task[None] | None = None  # of the login, by a fresh token
        self.traffic = Traffic(context.connections.usage.of(caller))
        self.sources: dict[str, MessageSource] = {}
        self._skipped = 0  # by subscriptions that have ended
        self._open_blocks: dict[str, asyncio.Task[None]] = {}  # they end with their sources
        self._deferred: dict[str, Subscribe] = {}  # until the client has room
        self._assembler = MessageAssembler(context.settings.max_frame_bytes)
        self._snapshot_lock = asyncio.Lock()  # one large snapshot at a time
        self._is_full = False  # the client has not read `buffer_bytes`
        self._full_since = 0.0
        self._byte_limit: TokenBucket | None = None
        self._turn_bytes = _TURN_BYTES  # of one subscription, then it is the next one's turn
        self._timers: dict[str, asyncio.TimerHandle] = {}  # by purpose
        self._unread = 0  # bytes of answers while it is full
        self._pong: bytes | None = None  # the answer to the newest ping, while it is full
        self._is_closed = False
        self._transport: WSTransport

    @property
    def skipped(self) -> int:
        """Changes that were left out for this client."""
        return self._skipped + sum(source.skipped for source in self.sources.values())

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        peer = transport.underlying_transport.get_extra_info("peername")
        self.address = self.address or (peer[0] if isinstance(peer, tuple) else "")
        limit = self._context.settings.buffer_bytes
        transport.underlying_transport.set_write_buffer_limits(high=limit, low=limit // 4)
        self._context.connections.add(self)
        self._login = self._context.logins.open(self.caller, self.close, self._ask_token)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._end()

    def _end(self) -> None:
        self._is_closed = True
        self._context.connections.discard(self)
        if self._login is not None:
            self._login.close()
        if self._renewal is not None:
            self._renewal.cancel()
        for purpose in list(self._timers):
            self._stop_timer(purpose)
        for identifier in self._identifiers():
            self._drop(identifier)

    def _identifiers(self) -> set[str]:
        return {*self._open_blocks, *self.sources, *self._deferred}

    def pause_writing(self) -> None:
        self._is_full, self._full_since = True, time.monotonic()
        self._start_timer("slow", DISCONNECT_SECONDS, self._check_slow)

    def resume_writing(self) -> None:
        self._is_full, self._unread = False, 0
        self._stop_timer("slow")
        if self._pong is not None:
            pong, self._pong = self._pong, None
            self._send_pong(pong)
        for identifier in list(self._deferred):
            if not self._is_full:
                self._open(self._deferred.pop(identifier))
        self._send_all()

    def send_positions(self) -> None:
        """Send the position of each subscription whose filter has hidden all recent changes."""
        for source in list(self.sources.values()):
            if not self._is_full and (message := source.refresh()) is not None:
                self._send(message)

    def subscriptions(self) -> list[SubscriptionReport]:
        return [source.report for source in self.sources.values()]

    def close(self, code: int | WSCloseCode, reason: str) -> None:
        """Close the connection, and tell the client why."""
        if self._is_closed:
            return
        if code in (WSCloseCode.GOING_AWAY, SERVICE_RESTART):
            # The client did nothing wrong: its messages of groups do not count as failed.
            for member in (each for each in self.sources.values() if isinstance(each, Member)):
                member.hand_back()
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
        try:
            match request:
                case Subscribe():
                    self._subscribe(request)
                case Update():
                    self._update(request)
                case Pause():
                    self._source(request.id).pause()
                    self._send(encode({"type": "updated", "id": request.id, "paused": True}))
                case Resume():
                    self._source(request.id).resume()
                    self._send(encode({"type": "updated", "id": request.id, "paused": False}))
                    self._send_messages(request.id)
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
                case Authenticate():
                    self._authenticate(request.token)
        except MillstreamError as error:
            self._refuse(getattr(request, "id", None), error)

    # --- the login ------------------------------------------------------------------------------

    def _ask_token(self, expires: float) -> None:
        """Ask for a fresh token, because the one in use expires soon."""
        self._send(encode({"type": "authenticate", "expires": _time(expires)}))

    def _authenticate(self, token: str) -> None:
        if self._renewal is not None and not self._renewal.done():
            raise QueryError("another token is being checked", remedy="wait for the answer")
        self._renewal = asyncio.get_running_loop().create_task(self._renew(token))

    async def _renew(self, token: str) -> None:
        assert self._login is not None
        try:
            self.caller = await self._context.logins.renew(self._login, token, self.address)
        except Problem as problem:
            self._error(None, problem.content["title"], str(problem))
        else:
            expires = _time(self.caller.expires)
            self._send(encode({"type": "authenticated", "expires": expires}))

    # --- requests -------------------------------------------------------------------------------

    def _subscribe(self, request: Subscribe) -> None:
        self._check(request)
        self._drop(request.id)
        if request.max_bytes is not None:
            self._limit_bytes(request.max_bytes)
        if self._is_full:  # else a snapshot would be held for a client that does not read
            self._deferred[request.id] = request
            return
        self._open(request)

    def _check(self, request: Subscribe) -> None:
        if len(request.id) > _MAX_ID_LENGTH:
            raise QueryError(f"the id is longer than {_MAX_ID_LENGTH} characters")
        if request.limit is not None and request.limit < 0:
            raise QueryError(f"limit {request.limit} is negative")
        _check_bytes(request.max_bytes)
        limit = self._context.settings.max_subscriptions
        identifiers = self._identifiers()
        if request.id not in identifiers and len(identifiers) >= limit:
            raise QueryError(
                f"this connection has {limit} subscriptions already",
                remedy="unsubscribe from one, or open another connection",
            )

    def _open(self, request: Subscribe) -> None:
        identifier = request.id
        subscriber = Subscriber(
            self.caller, lambda: self._send_messages(identifier), self._snapshot_lock
        )
        try:
            opening = open_source(self._context, subscriber, request)
        except MillstreamError as error:
            self._refuse(identifier, error)
            return
        if isinstance(opening, AbstractAsyncContextManager):
            work = self._open_block(identifier, opening)
            self._open_blocks[identifier] = asyncio.get_running_loop().create_task(work)
        else:
            self._begin(identifier, opening)

    async def _open_block(
        self, identifier: str, opening: AbstractAsyncContextManager[MessageSource]
    ) -> None:
        try:
            async with opening as source:
                self._begin(identifier, source)
                await asyncio.Event().wait()  # until the subscription is dropped
        except MillstreamError as error:
            self._fail(identifier, error)
        except TimeoutError:
            self._fail(identifier, LogError("Kafka does not answer", remedy="try again"))

    def _begin(self, identifier: str, source: MessageSource) -> None:
        self.sources[identifier] = source
        self._send_messages(identifier)

    def _fail(self, identifier: str, error: MillstreamError) -> None:
        """Report that a subscription could not start."""
        if self._open_blocks.get(identifier) is asyncio.current_task():
            del self._open_blocks[identifier]
        self._refuse(identifier, error)

    def _update(self, request: Update) -> None:
        if request.max_bytes is not UNSET:
            _check_bytes(request.max_bytes)
        if request.id is None:
            if request.changed or request.max_bytes is UNSET:
                raise QueryError(
                    "an update without an id can only change max_bytes",
                    remedy="name the subscription in id",
                )
            self._send(b'{"type":"updated","id":null,"paused":false}')
        else:
            self._source(request.id).update(request.changed)
        if request.max_bytes is not UNSET:
            self._limit_bytes(request.max_bytes)
        if request.id is not None:
            self._send_messages(request.id)

    def _source(self, identifier: str) -> MessageSource:
        source = self.sources.get(identifier)
        if source is not None:
            return source
        if identifier in self._identifiers():
            raise QueryError(
                f"subscription {identifier!r} has not started yet",
                remedy="wait for its first message",
            )
        raise QueryError(
            f"there is no subscription {identifier[:_MAX_ID_LENGTH]!r}", remedy="subscribe first"
        )

    def _member(self, identifier: str) -> Member | None:
        """The subscription as a member of a group, if it is one."""
        source = self.sources.get(identifier)
        return source if isinstance(source, Member) else None

    def _drop(self, identifier: str) -> None:
        self._deferred.pop(identifier, None)
        if (source := self.sources.pop(identifier, None)) is not None:
            self._skipped += source.skipped
            source.close()
        if (task := self._open_blocks.pop(identifier, None)) is not None:
            task.cancel()

    # --- sending --------------------------------------------------------------------------------

    def _send_all(self) -> None:
        for identifier in list(self.sources):
            self._send_messages(identifier)

    def _send_messages(self, identifier: str) -> None:
        """Send messages of one subscription until there are none, or the client has no room."""
        source = self.sources.get(identifier)
        if source is None:
            return
        while self._has_room():
            messages = source.next_messages(self._turn_bytes)
            if not messages:
                return
            self._write(messages)
            if source.has_more:
                return
        if self._is_closed:
            return
        # The others come first when there is room again.
        self.sources[identifier] = self.sources.pop(identifier)
        source.mark_slow()
        if source.is_too_slow(self._full_seconds):
            self._close_slow()

    def _has_room(self) -> bool:
        if self._is_full or self._is_closed:
            return False
        if self._byte_limit is not None and (wait := self._byte_limit.wait()) > 0:
            self._start_timer("bytes", wait, self._send_all)
            return False
        return True

    def _write(self, messages: list[bytes]) -> None:
        for message in messages:
            self._transport.send(WSMsgType.TEXT, message)
        self.traffic.add(messages)
        if self._byte_limit is not None:
            self._byte_limit.take(sum(map(len, messages)))

    @property
    def _full_seconds(self) -> float:
        return time.monotonic() - self._full_since if self._is_full else 0.0

    def _check_slow(self) -> None:
        if any(source.is_too_slow(self._full_seconds) for source in self.sources.values()):
            self._close_slow()

    def _close_slow(self) -> None:
        self.close(TOO_SLOW, "the client is too slow")

    def _limit_bytes(self, rate: int | None) -> None:
        """Send at most so many bytes per second from now on."""
        self._byte_limit = None if rate is None else TokenBucket(rate, rate / 4)
        self._turn_bytes = _TURN_BYTES if rate is None else min(_TURN_BYTES, rate // 4)
        self._stop_timer("bytes")
        asyncio.get_running_loop().call_soon(self._send_all)

    def _start_timer(self, purpose: str, seconds: float, action: Callable[[], None]) -> None:
        if purpose in self._timers:
            return

        def run() -> None:
            del self._timers[purpose]
            action()

        self._timers[purpose] = asyncio.get_running_loop().call_later(seconds, run)

    def _stop_timer(self, purpose: str) -> None:
        if (timer := self._timers.pop(purpose, None)) is not None:
            timer.cancel()

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

    def _refuse(self, identifier: str | None, error: MillstreamError) -> None:
        self._error(identifier, problem_of(error).title, str(error))

    def _error(self, identifier: str | None, title: str, detail: str) -> None:
        self._send(encode({"type": "error", "id": identifier, "title": title, "detail": detail}))


def _time(moment: float) -> str | None:
    return None if math.isinf(moment) else to_iso(moment * 1000)


def _check_bytes(rate: int | None) -> None:
    if rate is not None and rate < _MIN_BYTES_PER_SECOND:
        raise QueryError(
            f"max_bytes {rate} is too low: at least {_MIN_BYTES_PER_SECOND} bytes per second"
        )
