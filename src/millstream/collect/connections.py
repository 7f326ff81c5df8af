"""Connections within bounds: how many, how large their headers, how slow they may be."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
from collections import Counter
from functools import lru_cache
from typing import Any, NamedTuple, cast

import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from millstream.collect.asgi import HeaderList, Problem
from millstream.collect.protection_settings import ProtectionSettings
from millstream.collect.short_way import Route, ShortWay

CERTIFICATE = "millstream.certificate"  # in a request's scope: the names in the client's

_SPARE_FILES = 200  # descriptors that the journal, Kafka and sources need beside connections
_BODY_GRACE = 5.0  # seconds before a body's speed is looked at
_LINGER = 5.0  # seconds that a body which was answered already may go on coming
_FRAMING = 16  # bytes that may frame each byte of a body: a chunk of one takes five
_FAREWELL = 1.0  # seconds to read a last answer: closing on unread data would take it back

# What a connection waits for, or is busy with.
_IDLE, _HEAD, _BODY, _ANSWER = range(4)
_BODY_HEADERS = frozenset({b"content-length", b"transfer-encoding"})
_RETRY = (b"retry-after", b"1")
_CLOSE = (b"connection", b"close")
_NO_HEADERS: HeaderList = []
_HEAD_END = b"\r\n\r\n"
_MOST_KNOWN, _LARGEST_KNOWN = 1000, 1000  # heads, and bytes of one


class Known(NamedTuple):
    """What a request's head means."""

    route: Route
    length: int  # of the body


class Door:
    """Counts connections, and looks after them once in a while instead of a timer for each."""

    def __init__(self, settings: ProtectionSettings, short_way: ShortWay | None = None) -> None:
        self.settings = settings
        self.short_way = short_way
        self.now = asyncio.get_running_loop().time()  # as of the last look: near enough
        self.inside = 0
        self.refused: Counter[str] = Counter()  # by reason
        wanted = settings.max_connections + _SPARE_FILES
        self._most = max(1, min(settings.max_connections, _open_files(wanted) - _SPARE_FILES))
        self._by_network: Counter[str] = Counter()
        self._default: HeaderList = []
        self._heads: dict[tuple[int, bytes], bytes] = {}  # with those
        self._known: dict[bytes, Known] = {}  # heads of requests, as they came

    def enter(self, network: str) -> bool:
        """Whether one more connection from there may come in; if so, it must leave later."""
        if self.inside >= self._most:
            self.refused["connections"] += 1
            return False
        if self._by_network[network] >= self.settings.max_connections_per_address:
            self.refused["connections_per_address"] += 1
            return False
        self.inside += 1
        self._by_network[network] += 1
        return True

    def leave(self, network: str) -> None:
        """One that came in is gone."""
        self.inside -= 1
        self._by_network[network] -= 1
        if not self._by_network[network]:
            del self._by_network[network]

    def head(self, status: int, content_type: bytes, default: HeaderList) -> bytes:
        """An answer's first lines; `default` is another list whenever the date has changed."""
        if default is not self._default:
            self._default, self._heads = default, {}
        known = self._heads.get((status, content_type))
        if known is None:
            headers = [*default, *([(b"content-type", content_type)] if content_type else [])]
            lines = [STATUS_LINE[status], *(b"%b: %b\r\n" % each for each in headers)]
            known = self._heads[status, content_type] = b"".join(lines)
        return known

    def recall(self, data: bytes) -> tuple[Route, bytes] | None:
        """Route and body of a whole request whose head came before, byte by byte the same.

        A sender says the same each time: it is understood once.
        """
        end = data.find(_HEAD_END) + len(_HEAD_END)
        known = self._known.get(data[:end])
        if known is None or len(data) - end != known.length:
            return None
        return known.route, data[end:]

    def learn(self, data: bytes, route: Route, length: int) -> None:
        """A whole request, without another behind it, goes that way."""
        end = data.find(_HEAD_END) + len(_HEAD_END)
        if len(data) - end == length and end <= _LARGEST_KNOWN:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[data[:end]] = Known(route, length)

    async def watch(self, state: ServerState) -> None:
        """Cut off who is too slow; runs until it is cancelled."""
        settings, loop = self.settings, asyncio.get_running_loop()
        limits = (settings.header_timeout, settings.idle_timeout, settings.write_timeout)
        pause = min(0.5, *(each / 4 for each in limits))
        while True:
            await asyncio.sleep(pause)
            self.now = loop.time()
            for connection in list(state.connections):
                if isinstance(connection, GuardedProtocol):
                    connection.look(self.now)


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, with bounds on what a peer may send, keep open and leave unread."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        door: Door,
        counted: str = "",
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._door = door
        self._network = counted  # where the door counts it; empty: not yet
        self._names: tuple[str, ...] = ()
        self._phase = _HEAD
        self._since = door.now
        self._chunk = 0  # bytes of the piece that is being parsed
        self._fresh = 0  # of these, what cannot belong to an earlier request
        self._head_bytes = 0
        self._body_bytes = 0  # without what frames it
        self._framed_bytes = 0  # with it; of the pieces after the one that began it
        self._unsent = 0
        self._unsent_since = 0.0
        self._running: RequestResponseCycle | None = None  # whose answer is being made
        self._short: Exchange | None = None  # on the short way, and its body is not whole
        self._whole: tuple[Route, int] | None = None  # way and body of one that came in this piece
        self._refusal: Problem | None = None
        self._is_deaf = False  # nothing that still comes is heeded

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if not self._network:
            network = peer_network(transport)
            if not self._door.enter(network):
                transport.write(_raw(_too_many(), ()))
                transport.close()
                return
            self._network = network
        super().connection_made(transport)
        self._names = certificate_names(transport.get_extra_info("peercert"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._network:  # turned away at the door
            return
        self._door.leave(self._network)
        self._network = ""
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            # uvicorn tells only the newest of several in a row: another would write to nobody.
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf or self.transport is None or self.transport.is_closing():
            return
        is_between = self._phase == _IDLE or (self._phase == _HEAD and not self._head_bytes)
        if is_between and self._goes_on():
            recalled = self._door.recall(data)
            if recalled is not None:
                self._take(Exchange(self, recalled[0], True), recalled[1])
                return
        self._chunk = len(data)
        self._fresh = self._chunk if self._phase in (_IDLE, _HEAD) else 0
        self._head_bytes += self._chunk
        self._framed_bytes += self._chunk
        self._whole = None
        super().data_received(data)
        if is_between and self._whole is not None:
            self._door.learn(data, *self._whole)
        most = self._door.settings.max_header_bytes
        if self._is_deaf:
            return
        if self._phase == _HEAD and self._head_bytes > most:
            self._end_with(self._too_large())
        elif self._phase == _BODY and self._framed_bytes > most + _FRAMING * self._body_bytes:
            # Chunks' extensions, or headers behind a body: these too must have an end.
            self._end_with(self._too_large())

    def on_message_begin(self) -> None:
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._phase = _HEAD
        self._since = self._door.now
        self._head_bytes, self._fresh = self._fresh, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase == _HEAD:  # what comes behind a body is no header: a proxy never saw it
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        most = self._door.settings.max_header_bytes
        if len(self.headers) > self._door.settings.max_headers or (
            self._head_bytes + self._chunk > most  # else it cannot be: a body may be in that count
            and len(self.url) + sum(len(n) + len(v) + 4 for n, v in self.headers) > most
        ):
            self._refusal = self._too_large()
            raise ValueError("the headers are too large")  # ends the parser
        if self.parser.should_upgrade() and any(name in _BODY_HEADERS for name, _ in self.headers):
            # The parser takes what follows an upgrade for another protocol: the body would be lost.
            self._refusal = Problem(400, "no upgrade is possible; send the body without asking")
            raise ValueError("an upgrade with a body")
        route = self._short_route()
        if route is None:
            self._make_scope()
            super().on_headers_complete()
        else:
            self._short = Exchange(self, route, self.parser.should_keep_alive())
            self.cycle = cast(RequestResponseCycle, self._short)
        self._phase = _BODY
        self._since = self._door.now
        self._body_bytes = self._framed_bytes = self._fresh = 0

    def _short_route(self) -> Route | None:
        short_way = self._door.short_way
        if short_way is None or self.parser.get_method() != b"POST":
            return None
        if not self._goes_on() or self.parser.get_http_version() != "1.1":
            return None
        return short_way.admit(self.url, self.headers)

    def _goes_on(self) -> bool:
        """Whether the next request can be heeded: what was asked before is answered, and read."""
        if self.cycle is not None and not self.cycle.response_complete:
            return False  # uvicorn puts it behind the one before
        return not self.flow.write_paused

    def _make_scope(self) -> None:
        """What uvicorn does when a message begins; on the short way nobody asks for it."""
        read = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = read
        self.scope["headers"] = self.headers
        if self._names:
            self.scope[CERTIFICATE] = self._names  # type: ignore[literal-required]

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._short is None:
            super().on_body(body)
        else:
            self._short.pieces.append(body)

    def on_message_complete(self) -> None:
        self._phase = _ANSWER if not self.cycle.response_complete else _IDLE
        self._since = self._door.now
        if self._short is None:
            super().on_message_complete()
            return
        exchange, self._short = self._short, None
        if not exchange.response_complete:
            body = exchange.pieces[0] if len(exchange.pieces) == 1 else b"".join(exchange.pieces)
            if exchange.keep_alive:
                self._whole = exchange.route, len(body)
            self._take(exchange, body)

    def _take(self, exchange: Exchange, body: bytes) -> None:
        short_way = self._door.short_way
        assert short_way is not None
        self.cycle = cast(RequestResponseCycle, exchange)
        self._phase = _ANSWER
        self._since = self._door.now
        short_way.take(exchange.route, body, exchange.respond)

    def answer(
        self, exchange: Exchange, status: int, body: bytes, content_type: bytes, more: HeaderList
    ) -> None:
        """Send the answer of a request on the short way, unless nobody is there any more."""
        if exchange.disconnected or self.transport.is_closing():
            return
        head = self._door.head(status, content_type, self.server_state.default_headers)
        if content_type:
            head = b"%bcontent-length: %d\r\n" % (head, len(body))
        if more or not exchange.keep_alive:
            closing = () if exchange.keep_alive else (_CLOSE,)
            head = b"".join([head, *(b"%b: %b\r\n" % each for each in (*more, *closing))])
        self.transport.write(b"%b\r\n%b" % (head, body))
        if not exchange.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        """As uvicorn does it, but without a timer for the next request: the door looks after it."""
        if self._phase == _ANSWER and not self.pipeline:
            self._phase = _IDLE
        self._since = self._door.now
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def look(self, now: float) -> None:
        """End the connection if it has waited too long for its peer."""
        settings, waited = self._door.settings, now - self._since
        if self._is_unread(now):
            self._door.refused["unread"] += 1
            self.transport.abort()
        elif self._is_deaf:
            if waited > _FAREWELL and (self.cycle is None or self.cycle.response_complete):
                self.transport.close()
        elif self._phase == _IDLE and waited > settings.idle_timeout:
            self.transport.close()
        elif self._phase == _HEAD and waited > settings.header_timeout:
            self._door.refused["slow_headers"] += 1
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
            and self._body_bytes < waited * self._door.settings.min_body_rate
        ):
            self._door.refused["slow_body"] += 1
            self._end_with(_too_slow(f"body came with {self._body_bytes / waited:.0f} bytes/s"))

    def _is_unread(self, now: float) -> bool:
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, now
        return bool(unsent) and now - self._unsent_since > self._door.settings.write_timeout

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for what is not HTTP."""
        if self._refusal is None:
            self._door.refused["not_http"] += 1
            self._refusal = Problem(400, "this is not HTTP/1.1; nothing was taken in")
        self._end_with(self._refusal)

    def _end_with(self, problem: Problem) -> None:
        """Answer and hang up; but what was asked before is answered first, and then is the end."""
        cycle = self.cycle
        self._is_deaf = True
        self._since = self._door.now
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
            if self._phase != _BODY or self.pipeline or cycle.response_started:
                return
            # The body will not come: the application must not wait for it.
            cycle.disconnected = cycle.response_complete = True
            cycle.message_event.set()
        self.transport.write(_raw(problem, self.server_state.default_headers))
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _unsupported_upgrade_warning(self) -> None:
        """An upgrade (curl asks for HTTP/2 so) is not heeded: answered as it is, and the end."""
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def _too_large(self) -> Problem:
        self._door.refused["large_headers"] += 1
        settings = self._door.settings
        return Problem(
            431,
            f"the headers are more than {settings.max_headers}, or larger than "
            f"{settings.max_header_bytes} bytes; send fewer, or raise collect.max_header_bytes",
        )


class Exchange:
    """A request on the short way; to uvicorn it looks like one that the application answers."""

    __slots__ = (
        *("_protocol", "disconnected", "keep_alive", "message_event", "pieces"),
        *("response_complete", "response_started", "route"),
    )

    def __init__(self, protocol: GuardedProtocol, route: Route, keep_alive: bool) -> None:
        self.route = route
        self.pieces: list[bytes] = []  # of the body
        self.keep_alive = keep_alive
        self.disconnected = self.response_started = self.response_complete = False
        self.message_event = _NOBODY
        self._protocol = protocol

    def respond(
        self, status: int, body: bytes, content_type: bytes, headers: HeaderList = _NO_HEADERS
    ) -> None:
        """See `short_way.Respond`."""
        self.response_started = self.response_complete = True
        self._protocol.answer(self, status, body, content_type, headers)


class _Nobody:
    """Where uvicorn would wake up an application that waits for the body: none does."""

    def set(self) -> None:
        pass


_NOBODY = _Nobody()


@lru_cache(4096)
def network_of(host: str) -> str:
    """The address that limits go by: of IPv6 the /64, since one sender has all of it."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host


def peer_network(transport: asyncio.BaseTransport) -> str:
    """Where a connection comes from."""
    peer = transport.get_extra_info("peername")
    return network_of(peer[0]) if isinstance(peer, tuple) else "unknown"


def certificate_names(certificate: dict[str, Any] | None) -> tuple[str, ...]:
    """The common name and the alternative names in a verified client certificate."""
    if not certificate:
        return ()
    common = [
        value
        for part in certificate.get("subject", ())
        for name, value in part
        if name == "commonName"
    ]
    return tuple(dict.fromkeys([*common, *(v for _, v in certificate.get("subjectAltName", ()))]))


def _open_files(wanted: int) -> int:
    """How many files this process may have open, after asking for as many as are wanted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


def _too_many() -> Problem:
    return Problem(
        503, "there are too many connections; close some, or try later", headers=[_RETRY, _CLOSE]
    )


def _too_slow(what: str) -> Problem:
    return Problem(408, f"the {what}; nothing was taken in, send it faster")


def _raw(problem: Problem, more: Any) -> bytes:
    body = msgspec.json.encode(problem.content)
    headers = [
        *more,
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        *[each for each in problem.headers if each != _CLOSE],
        _CLOSE,
    ]
    lines = [STATUS_LINE[problem.status], *(b"%b: %b\r\n" % each for each in headers), b"\r\n"]
    return b"".join([*lines, body])
