"""HTTP/1.1 within bounds: how large heads are, how slow a peer is, how much it leaves unread."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from millstream.web.asgi import HeaderList
from millstream.web.connections import (
    CERTIFICATE,
    ConnectionLimits,
    certificate_names,
    peer_network,
)
from millstream.web.fast_path import HEAD_END, Exchange, Route
from millstream.web.problem import CLOSE, CONTENT_TYPE, RETRY, Problem
from millstream.web.request_head import CHUNKED, read_request_head

_BODY_GRACE = 5.0  # seconds before a body's speed is looked at
_LINGER = 5.0  # seconds that a body which was answered already may go on coming
_FRAMING = 16  # bytes that may frame each byte of a body: a chunk of one takes five
_FAREWELL = 1.0  # seconds to read a last answer: closing on unread data would take it back

# What a connection waits for, or is busy with.
_IDLE, _HEAD, _BODY, _ANSWER = range(4)


class LimitedHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, with bounds on what a peer may send, keep open and leave unread.

    The parser gets the bytes of one request at a time. What follows waits unparsed, and nothing
    more is read, until that request is answered and most of the answer was taken. So a peer that
    sends many requests at once gets one answer per turn of the event loop, like everybody else.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits,
        counted: str = "",
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._network = counted  # where the limits counts it; empty: not yet
        self._names: tuple[str, ...] = ()
        self._phase = _HEAD
        self._since = limits.now
        self._head_bytes = 0
        self._length = 0  # of the body, or CHUNKED
        self._body_bytes = 0  # without what frames it
        self._framed_bytes = 0  # with it
        self._tail = b""  # the last bytes that were parsed: an end may come in two pieces
        self._rest, self._rest_at = b"", 0  # bytes behind a request that is not answered yet
        self._is_called = False  # to parse them in the loop's next turn
        self._unread = 0  # bytes of an answer that the peer did not take at once
        self._unsent = 0
        self._unsent_since = 0.0
        self._short: Exchange | None = None  # on the fast path, and its body is not whole
        self._is_complete = False  # a request ended in this piece
        self._whole: tuple[Route, int] | None = None  # way and body of one that came in this piece
        self._refusal: Problem | None = None
        self._is_deaf = False  # whatever still comes is ignored
        self._successor: Any = None  # a WebSocket, which has the connection now

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if not self._network:
            network = peer_network(transport)
            if not self._limits.admit(network):
                transport.write(_raw(_too_many(), ()))
                transport.close()
                return
            self._network = network
        super().connection_made(transport)
        self._names = certificate_names(transport.get_extra_info("peercert"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._network:  # turned away at the limits
            return
        self._limits.release(self._network)
        self._network = ""
        self._rest, self._unread = b"", 0
        self._limits.set_memory(self, 0)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf or self.transport is None or self.transport.is_closing():
            return
        if self._rest or self._owes():
            self._keep(self._rest[self._rest_at :] + data, 0)
            return
        if self._is_between():
            recalled = self._limits.heads.find(data)
            if recalled is not None:
                self._take(Exchange(self, recalled[0], True), recalled[1])
                return
        self._parse(data, 0)

    def _owes(self) -> bool:
        """Whether an answer is not complete, or not taken by the peer."""
        return self._phase == _ANSWER or (self._phase == _IDLE and self.flow.write_paused)

    def _is_between(self) -> bool:
        """Whether the next byte is a request's first."""
        return not self._head_bytes and self._phase in (_IDLE, _HEAD)

    def _keep(self, data: bytes, at: int) -> None:
        """Parse what stands behind `at` later, and read nothing more until then."""
        self._rest, self._rest_at = data, at
        self.flow.pause_reading()
        self._limits.set_memory(self, self._unread + len(data))

    def _go_on(self) -> None:
        """Turn to the next request: to the one that is here, else read."""
        if not self._rest:
            self.flow.resume_reading()
        elif not self._is_called and not self._owes():
            self._is_called = True
            self.loop.call_soon(self._parse_rest)

    def _parse_rest(self) -> None:
        self._is_called = False
        if self._is_deaf or self.transport.is_closing() or self._owes():
            return
        data, self._rest = self._rest, b""
        self._parse(data, self._rest_at)
        if not self._rest:
            self._limits.set_memory(self, self._unread)
            if not self._owes():
                self.flow.resume_reading()

    def _parse(self, data: bytes, at: int) -> None:
        """Parse one request, or what is here of it; bytes behind it are kept."""
        start, size, is_between = at, len(data), self._is_between()
        self._whole = None
        self._is_complete = False
        while at < size and not self._is_complete and not self._is_deaf:
            end = self._end_of_part(data, at)
            self._feed(data if end - at == size else data[at:end])
            at = end
        if self._is_deaf:
            if self._successor is not None and at < size:
                self._successor.data_received(data[at:])
        elif at < size:
            self._keep(data, at)
            self._go_on()
        elif is_between and start == 0 and self._whole is not None:
            self._limits.heads.remember(data, *self._whole)

    def _end_of_part(self, data: bytes, at: int) -> int:
        """How far to parse, so that at most one request ends there.

        A head ends with an empty line, and so does a body in chunks.
        """
        if self._phase == _BODY and self._length != CHUNKED:
            self._tail = b""
            return min(len(data), at + self._length - self._body_bytes)
        found = (self._tail + data[at : at + 3]).find(HEAD_END) if self._tail else -1
        if found >= 0:
            end = at + found + len(HEAD_END) - len(self._tail)
        else:
            found = data.find(HEAD_END, at)
            end = found + len(HEAD_END) if found >= 0 else len(data)
        self._tail = b"" if found >= 0 else (self._tail + data[max(at, end - 3) : end])[-3:]
        return end

    def _feed(self, part: bytes) -> None:
        if self._phase == _BODY:
            self._framed_bytes += len(part)
        else:
            self._head_bytes += len(part)
        super().data_received(part)
        if self._is_deaf:
            return
        most = self._limits.settings.max_header_bytes
        if self._phase == _BODY:
            # Chunks' extensions, or headers behind a body: these too must have an end.
            is_large = self._framed_bytes > most + _FRAMING * self._body_bytes
        else:
            is_large = self._head_bytes > most
        if is_large:
            self._end_with(self._too_large())

    def on_message_begin(self) -> None:
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._phase = _HEAD
        self._since = self._limits.now

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase == _HEAD:  # what comes behind a body is no header: a proxy never saw it
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        try:
            self._check_head()
        except Problem as problem:
            self._refusal = problem
            raise  # ends the parser
        route = self._short_route()
        if route is None:
            self._make_scope()
            super().on_headers_complete()
        else:
            self._short = Exchange(self, route, self.parser.should_keep_alive())
            self.cycle = cast(RequestResponseCycle, self._short)
        self._phase = _BODY
        self._since = self._limits.now
        self._head_bytes = self._body_bytes = self._framed_bytes = 0

    def _check_head(self) -> None:
        limits = self._limits
        if len(self.headers) > limits.settings.max_headers:
            raise self._too_large()
        if self._head_bytes > limits.settings.max_header_bytes:
            raise self._too_large()
        host, self._length = read_request_head(
            self.url, self.headers, self.parser.get_http_version()
        )
        if host is not None and not limits.hosts.accepts(
            host, self.server[0] if self.server else ""
        ):
            limits.refused["host"] += 1
            raise _other_host(host, limits.tier)
        if self.parser.should_upgrade() and self._length:
            # The parser takes what follows an upgrade for another protocol: the body would be lost.
            raise Problem(400, "no upgrade is possible; send the body without asking")

    def _short_route(self) -> Route | None:
        fast_path = self._limits.fast_path
        if fast_path is None or self.parser.get_method() != b"POST":
            return None
        if self.parser.get_http_version() != "1.1":
            return None
        return fast_path.find_route(self.url, self.headers)

    def _make_scope(self) -> None:
        """What uvicorn does when a message begins; on the fast path nobody asks for it."""
        read = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = read
        self.scope["headers"] = self.headers
        if self._names:
            self.scope[CERTIFICATE] = self._names  # type: ignore[literal-required]

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._short is None:
            super().on_body(body)
        else:
            self._short.pieces.append(body)

    def on_message_complete(self) -> None:
        self._is_complete = True
        self._phase = _ANSWER
        self._since = self._limits.now
        if self._short is None:
            if self.cycle is not None:  # else it becomes a WebSocket
                super().on_message_complete()
                if self.cycle.response_complete:
                    self._phase = _IDLE
            return
        exchange, self._short = self._short, None
        if exchange.response_complete:
            self._phase = _IDLE
            return
        body = exchange.pieces[0] if len(exchange.pieces) == 1 else b"".join(exchange.pieces)
        if exchange.keep_alive:
            self._whole = exchange.route, len(body)
        self._take(exchange, body)

    def _take(self, exchange: Exchange, body: bytes) -> None:
        fast_path = self._limits.fast_path
        assert fast_path is not None
        self.cycle = cast(RequestResponseCycle, exchange)
        self._phase = _ANSWER
        self._since = self._limits.now
        fast_path.handle(exchange.route, body, exchange.respond)

    def answer(
        self, exchange: Exchange, status: int, body: bytes, content_type: bytes, more: HeaderList
    ) -> None:
        """Send the answer of a request on the fast path, unless nobody is there any more."""
        if exchange.disconnected or self.transport.is_closing():
            return
        head = self._limits.heads.response_head(
            status, content_type, self.server_state.default_headers
        )
        if content_type:
            head = b"%bcontent-length: %d\r\n" % (head, len(body))
        if more or not exchange.keep_alive:
            closing = () if exchange.keep_alive else (CLOSE,)
            head = b"".join([head, *(b"%b: %b\r\n" % each for each in (*more, *closing))])
        self.transport.write(b"%b\r\n%b" % (head, body))
        if not exchange.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        """As uvicorn, but without a timer for the next request: `check_timeouts` replaces it."""
        if self._phase == _ANSWER:
            self._phase = _IDLE
        self._since = self._limits.now
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self._go_on()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.transport.get_write_buffer_size()
        self._limits.set_memory(self, self._unread + len(self._rest))

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = 0
        self._limits.set_memory(self, len(self._rest))
        if self._phase == _IDLE:
            self._go_on()

    def abort(self) -> None:
        """End the connection; in the loop's next turn, since a write may be under way."""
        self.loop.call_soon(self.transport.abort)

    def check_timeouts(self, now: float) -> None:
        """End the connection if it has waited too long for its peer."""
        settings, waited = self._limits.settings, now - self._since
        if self._is_unread(now):
            self._limits.refused["unread"] += 1
            self.transport.abort()
        elif self._is_deaf:
            if waited > _FAREWELL and (self.cycle is None or self.cycle.response_complete):
                self.transport.close()
        elif self._phase == _IDLE and waited > settings.idle_timeout:
            self.transport.close()
        elif self._phase == _HEAD and waited > settings.header_timeout:
            self._limits.refused["slow_headers"] += 1
            if self._head_bytes:
                self._end_with(_too_slow(f"headers were not complete after {waited:.1f} s"))
            else:
                self.transport.close()
        elif self._phase == _BODY:
            self._look_at_body(waited)

    def _look_at_body(self, waited: float) -> None:
        if self.cycle.response_complete:
            if waited > _LINGER:
                self.transport.close()
        elif (
            waited > _BODY_GRACE
            and not self.flow.read_paused  # it is we who don't read
            and self._body_bytes < waited * self._limits.settings.min_body_rate
        ):
            self._limits.refused["slow_body"] += 1
            self._end_with(_too_slow(f"body came with {self._body_bytes / waited:.0f} bytes/s"))

    def _is_unread(self, now: float) -> bool:
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, now
        return bool(unsent) and now - self._unsent_since > self._limits.settings.write_timeout

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for what is not HTTP."""
        if self._refusal is None:
            self._limits.refused["not_http"] += 1
            self._refusal = Problem(400, "this is not HTTP/1.1; nothing was taken in")
        self._end_with(self._refusal)

    def _end_with(self, problem: Problem) -> None:
        """Answer and hang up; an answer that has begun already is the last one instead."""
        cycle = self.cycle
        self._is_deaf = True
        self._since = self._limits.now
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
            if cycle.response_started:
                return
            # The body will not come: the application must not wait for it.
            cycle.disconnected = cycle.response_complete = True
            cycle.message_event.set()
        self.transport.write(_raw(problem, self.server_state.default_headers))
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over, with the request that was read.

        The WebSocket's protocol calls `release` when the connection is lost.
        """
        self.connections.discard(self)
        head = [self.scope["method"].encode(), b" ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.headers:
            head += [name, b": ", value, b"\r\n"]
        successor = self._successor = cast(Any, self.ws_protocol_class)(
            config=self.config, server_state=self.server_state, app_state=self.app_state
        )
        successor.release = partial(self._limits.release, self._network)
        self._network, self._is_deaf = "", True
        successor.connection_made(self.transport)
        successor.data_received(b"".join([*head, b"\r\n"]))
        self.transport.set_protocol(successor)

    def _unsupported_upgrade_warning(self) -> None:
        """Another upgrade (curl asks for HTTP/2 so) is ignored; the answer is the last one."""
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def _too_large(self) -> Problem:
        self._limits.refused["large_headers"] += 1
        settings = self._limits.settings
        return Problem(
            431,
            f"the headers are more than {settings.max_headers}, or larger than "
            f"{settings.max_header_bytes} bytes; send fewer, or raise "
            f"{self._limits.tier}.max_header_bytes",
        )


def _other_host(host: bytes, tier: str) -> Problem:
    name = host.decode("latin-1")[:200]
    return Problem(
        421,
        f"no server of the name {name!r} is here",
        remedy=f"name it in {tier}.allowed_hosts if clients may reach this one so",
    )


def _too_many() -> Problem:
    return Problem(
        503, "there are too many connections; close some, or try later", headers=[RETRY, CLOSE]
    )


def _too_slow(what: str) -> Problem:
    return Problem(408, f"the {what}; nothing was taken in, send it faster")


def _raw(problem: Problem, more: Any) -> bytes:
    body = msgspec.json.encode(problem.content)
    headers = [
        *more,
        (b"content-type", CONTENT_TYPE),
        (b"content-length", str(len(body)).encode()),
        *[each for each in problem.headers if each != CLOSE],
        CLOSE,
    ]
    lines = [STATUS_LINE[problem.status], *(b"%b: %b\r\n" % each for each in headers), b"\r\n"]
    return b"".join([*lines, body])
