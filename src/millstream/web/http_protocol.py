"""HTTP/1.1 with limits for the size of heads, the slowness of peers and unread responses."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, cast
from urllib.parse import unquote

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from millstream.web.asgi import HeaderList, Scope
from millstream.web.connections import (
    CERTIFICATE,
    ConnectionLimits,
    certificate_names,
    network_of,
    peer_network,
    set_user_timeout,
)
from millstream.web.fast_path import HEAD_END, FastRequest, Route
from millstream.web.problem import CLOSE, RETRY, Problem
from millstream.web.request_head import CHUNKED, read_request_head

_log = logging.getLogger(__name__)

_BODY_GRACE = 5.0  # seconds before a body's rate is checked
_LINGER = 5.0  # seconds that a body may continue after its response
_FRAMING = 16  # bytes of chunk framing for each byte of a body; a chunk of one byte has five
_CLOSE_DELAY = 1.0  # seconds to read a last response: closing at once could discard it

TOO_MANY = "there are too many connections; close some, or try later"
_CREDENTIALS = frozenset({b"authorization", b"x-api-key", b"cookie"})

# What a connection waits for: the next request, parts of one, or its response.
_IDLE, _HEAD, _BODY, _RESPONSE = range(4)


class LimitedHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol, with limits.

    The parser gets the bytes of one request at a time. Bytes behind it wait, and nothing more is
    read, until that request is answered and the peer has read most of the response. So a peer that
    sends many requests at once gets one response per turn of the event loop, like all others.
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
        self._network = counted  # as which it is counted; empty: not yet
        self._names: tuple[str, ...] = ()
        self._phase = _HEAD
        self._since = limits.now
        self._head_bytes = 0
        self._length = 0  # of the body, or CHUNKED
        self._body_bytes = 0  # without its framing
        self._framed_bytes = 0  # with its framing
        self._tail = b""  # the last parsed bytes: an end may come in two pieces
        self._rest, self._rest_at = b"", 0  # bytes behind a request that is not answered yet
        self._is_scheduled = False  # the rest will be parsed in the next turn of the loop
        self._unread = 0  # bytes of a response when writing was paused
        self._unsent = 0
        self._unsent_since = 0.0
        self._fast_request: FastRequest | None = None  # its body is not complete yet
        self._is_complete = False  # a request ended in these bytes
        self._cacheable: tuple[Route, int] | None = None  # route and body size of that request
        self._refusal: Problem | None = None
        self._ignores_input = False
        self._websocket: Any = None  # the protocol that has taken over the connection
        self._admission: asyncio.Task[None] | None = None  # of a WebSocket

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if not self._network:
            network = peer_network(transport)
            if not self._limits.admit(network):
                transport.write(Problem(503, TOO_MANY, headers=[RETRY]).encode())
                transport.close()
                return
            self._network = network
        # A peer that vanished must not hold a connection for the kernel's 15 minutes.
        set_user_timeout(transport, self._limits.settings.write_timeout)
        super().connection_made(transport)
        self._names = certificate_names(transport.get_extra_info("peercert"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._network:  # it was not admitted
            return
        self._limits.release(self._network)
        self._network = ""
        self._rest, self._unread = b"", 0
        self._limits.set_memory(self, 0)
        if self._admission is not None:
            self._admission.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._ignores_input or self.transport is None or self.transport.is_closing():
            return
        if self._rest or self._has_open_response():
            self._postpone(self._rest[self._rest_at :] + data, 0)
            return
        if self._is_at_start():
            cached = self._limits.heads.find(data)
            if cached is not None:
                self._handle_fast(FastRequest(self, cached[0], True), cached[1])
                return
        self._parse(data, 0)

    def _has_open_response(self) -> bool:
        """Whether a response is not complete, or the peer has not read it."""
        return self._phase == _RESPONSE or (self._phase == _IDLE and self.flow.write_paused)

    def _is_at_start(self) -> bool:
        """Whether the next byte is a request's first."""
        return not self._head_bytes and self._phase in (_IDLE, _HEAD)

    def _postpone(self, data: bytes, at: int) -> None:
        """Parse the bytes from `at` on later, and read nothing more until then."""
        self._rest, self._rest_at = data, at
        self.flow.pause_reading()
        self._limits.set_memory(self, self._unread + len(data))

    def _continue(self) -> None:
        """Parse the postponed request, or read the next one."""
        if not self._rest:
            self.flow.resume_reading()
        elif not self._is_scheduled and not self._has_open_response():
            self._is_scheduled = True
            self.loop.call_soon(self._parse_rest)

    def _parse_rest(self) -> None:
        self._is_scheduled = False
        if self._ignores_input or self.transport.is_closing() or self._has_open_response():
            return
        data, self._rest = self._rest, b""
        self._parse(data, self._rest_at)
        if not self._rest:
            self._limits.set_memory(self, self._unread)
            if not self._has_open_response():
                self.flow.resume_reading()

    def _parse(self, data: bytes, at: int) -> None:
        """Parse one request or a part of it; bytes behind it are postponed."""
        start, size, is_at_start = at, len(data), self._is_at_start()
        self._cacheable = None
        self._is_complete = False
        while at < size and not self._is_complete and not self._ignores_input:
            end = self._end_of_part(data, at)
            self._feed(data if end - at == size else data[at:end])
            at = end
        if self._ignores_input:
            return
        if at < size:
            self._postpone(data, at)
            self._continue()
        elif is_at_start and start == 0 and self._cacheable is not None:
            self._limits.heads.remember(data, *self._cacheable)

    def _end_of_part(self, data: bytes, at: int) -> int:
        """Where to stop parsing, so that at most one request ends there.

        A head ends with an empty line, and so does a chunked body.
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
        if self._ignores_input:
            return
        most = self._limits.settings.max_header_bytes
        if self._phase == _BODY:
            # This also limits chunk extensions and trailers.
            is_large = self._framed_bytes > most + _FRAMING * self._body_bytes
        else:
            is_large = self._head_bytes > most
        if is_large:
            self._refuse(self._too_large())

    def on_message_begin(self) -> None:
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._phase = _HEAD
        self._since = self._limits.now

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase == _HEAD:  # trailers are ignored: a proxy does not check them
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        try:
            self._check_head()
        except Problem as problem:
            self._refusal = problem
            raise  # stops the parser
        route = self._fast_route()
        if route is None:
            self._make_scope()
            super().on_headers_complete()
        else:
            self._fast_request = FastRequest(self, route, self.parser.should_keep_alive())
            self.cycle = cast(RequestResponseCycle, self._fast_request)
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
            # The parser treats bytes after an upgrade as another protocol: the body would be lost.
            raise Problem(400, "a request with a body cannot upgrade; send it without Upgrade")

    def _fast_route(self) -> Route | None:
        fast_path = self._limits.fast_path
        if fast_path is None or self.parser.get_method() != b"POST":
            return None
        if self.parser.get_http_version() != "1.1":
            return None
        return fast_path.find_route(self.url, self.headers)

    def _make_scope(self) -> None:
        """Do what uvicorn does when a message begins; the fast path does not need it."""
        read = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = read
        self.scope["headers"] = self.headers
        if self.client is not None:
            client = self._limits.proxies.client(self.client[0], self.headers)
            if client != self.client[0]:
                self.scope["client"] = (client, 0)  # the port is the proxy's
        if self._names:
            self.scope[CERTIFICATE] = self._names  # type: ignore[literal-required]

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._fast_request is None:
            super().on_body(body)
        else:
            self._fast_request.pieces.append(body)

    def on_message_complete(self) -> None:
        self._is_complete = True
        self._phase = _RESPONSE
        self._since = self._limits.now
        if self._fast_request is None:
            if self.cycle is not None:  # it is None for a WebSocket
                super().on_message_complete()
                if self.cycle.response_complete:
                    self._phase = _IDLE
            return
        request, self._fast_request = self._fast_request, None
        if request.response_complete:
            self._phase = _IDLE
            return
        body = request.pieces[0] if len(request.pieces) == 1 else b"".join(request.pieces)
        if request.keep_alive:
            self._cacheable = request.route, len(body)
        self._handle_fast(request, body)

    def _handle_fast(self, request: FastRequest, body: bytes) -> None:
        fast_path = self._limits.fast_path
        assert fast_path is not None
        self.cycle = cast(RequestResponseCycle, request)
        self._phase = _RESPONSE
        self._since = self._limits.now
        fast_path.handle(request.route, body, request.respond)

    def send_response(
        self, request: FastRequest, status: int, body: bytes, content_type: bytes, more: HeaderList
    ) -> None:
        """Send the response to a request on the fast path, unless the peer has disconnected."""
        if request.disconnected or self.transport.is_closing():
            return
        head = self._limits.heads.response_head(
            status, content_type, self.server_state.default_headers
        )
        if content_type:
            head = b"%bcontent-length: %d\r\n" % (head, len(body))
        if more or not request.keep_alive:
            closing = () if request.keep_alive else (CLOSE,)
            head = b"".join([head, *(b"%b: %b\r\n" % each for each in (*more, *closing))])
        self.transport.write(b"%b\r\n%b" % (head, body))
        if not request.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        """As uvicorn, but without a timer for the next request: `check_timeouts` replaces it."""
        if self._phase == _RESPONSE:
            self._phase = _IDLE
        self._since = self._limits.now
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self._continue()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.transport.get_write_buffer_size()
        self._limits.set_memory(self, self._unread + len(self._rest))

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = 0
        self._limits.set_memory(self, len(self._rest))
        if self._phase == _IDLE:
            self._continue()

    def abort(self) -> None:
        """Close the connection in the next turn of the loop, because a write may be in progress."""
        self.loop.call_soon(self.transport.abort)

    def check_timeouts(self, now: float) -> None:
        """Close the connection if it has waited too long for its peer."""
        settings, waited = self._limits.settings, now - self._since
        if self._is_write_stuck(now):
            self._limits.refused["unread"] += 1
            self.transport.abort()
        elif self._ignores_input:
            if waited > _CLOSE_DELAY and (self.cycle is None or self.cycle.response_complete):
                self.transport.close()
        elif self._phase == _IDLE and waited > settings.idle_timeout:
            self.transport.close()
        elif self._phase == _HEAD and waited > settings.header_timeout:
            self._limits.refused["slow_headers"] += 1
            if self._head_bytes:
                self._refuse(_too_slow(f"headers were not complete after {waited:.1f} s"))
            else:
                self.transport.close()
        elif self._phase == _BODY:
            self._check_body_rate(waited)

    def _check_body_rate(self, waited: float) -> None:
        if self.cycle.response_complete:
            if waited > _LINGER:
                self.transport.close()
        elif (
            waited > _BODY_GRACE
            and not self.flow.read_paused  # else we are not reading
            and self._body_bytes < waited * self._limits.settings.min_body_rate
        ):
            self._limits.refused["slow_body"] += 1
            self._refuse(_too_slow(f"body came with {self._body_bytes / waited:.0f} bytes/s"))

    def _is_write_stuck(self, now: float) -> bool:
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, now
        return bool(unsent) and now - self._unsent_since > self._limits.settings.write_timeout

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for invalid HTTP."""
        if self._refusal is None:
            self._limits.refused["not_http"] += 1
            self._refusal = Problem(400, "this is not HTTP/1.1; nothing was accepted")
        self._refuse(self._refusal)

    def _refuse(self, problem: Problem) -> None:
        """Send a problem and close; if a response has begun, it is the last one instead."""
        cycle = self.cycle
        self._ignores_input = True
        self._since = self._limits.now
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
            if cycle.response_started:
                return
            # The application must not wait for the rest of the body.
            cycle.disconnected = cycle.response_complete = True
            cycle.message_event.set()
        self.transport.write(problem.encode(self.server_state.default_headers))
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def handle_websocket_upgrade(self) -> None:
        """Ask whether the connection may become a WebSocket.

        Bytes behind the request wait meanwhile, as behind any request without a response.
        """
        self._admission = self.loop.create_task(self._admit_websocket())

    async def _admit_websocket(self) -> None:
        scope = cast(Scope, self.scope)
        path, _, scope["query_string"] = self.url.partition(b"?")
        scope["raw_path"], scope["path"] = path, unquote(path.decode("latin-1"))
        client = scope.get("client")
        network = network_of(client[0]) if client else self._network
        try:
            if self._limits.admit_websocket is not None:
                await self._limits.admit_websocket(scope)
            if not self._limits.move(self._network, network):
                raise Problem(503, TOO_MANY, headers=[RETRY])
        except Problem as problem:
            self._refuse(problem)
            return
        except Exception:
            _log.exception("cannot open a WebSocket")
            self._refuse(Problem(500, "the server failed; its log says why"))
            return
        self._network = network
        self._hand_over(scope)

    def _hand_over(self, scope: Scope) -> None:
        """Hand the connection to the WebSocket's protocol, with the request that was read.

        That protocol may log what it reads, so it gets no credentials. It calls `release` when the
        connection is lost.
        """
        self.connections.discard(self)
        set_user_timeout(self.transport, 0)  # pings watch a WebSocket, which may pause for longer
        head = [scope["method"].encode(), b" ", scope["raw_path"], b" HTTP/1.1\r\n"]
        for name, value in self.headers:
            if name not in _CREDENTIALS:
                head += [name, b": ", value, b"\r\n"]
        websocket = self._websocket = cast(Any, self.ws_protocol_class)(scope)
        websocket.release = partial(self._limits.release, self._network)
        self._network, self._ignores_input = "", True
        rest, self._rest = self._rest[self._rest_at :], b""
        self._limits.set_memory(self, 0)
        websocket.connection_made(self.transport)
        websocket.data_received(b"".join([*head, b"\r\n", rest]))
        self.transport.set_protocol(websocket)
        self.flow.resume_reading()

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore other upgrades, such as curl's to HTTP/2, and close after the response."""
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def _too_large(self) -> Problem:
        self._limits.refused["large_headers"] += 1
        settings = self._limits.settings
        return Problem(
            431,
            f"there are more than {settings.max_headers} headers, or they are larger than "
            f"{settings.max_header_bytes} bytes; send fewer, or raise "
            f"{self._limits.tier}.max_header_bytes",
        )


def _other_host(host: bytes, tier: str) -> Problem:
    name = host.decode("latin-1")[:200]
    return Problem(
        421,
        f"this server does not have the name {name!r}",
        remedy=f"add it to {tier}.allowed_hosts if clients may use it",
    )


def _too_slow(what: str) -> Problem:
    return Problem(408, f"the {what}; nothing was accepted, send it faster")
