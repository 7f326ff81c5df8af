"""The fast path: requests that are answered without ASGI, so without task, scope and messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from millstream.web.asgi import HeaderList

Route = Any  # what a tier's fast path knows about a request; opaque here

HEAD_END = b"\r\n\r\n"
_NO_HEADERS: HeaderList = []
_MAX_HEADS, _MAX_HEAD_BYTES = 1000, 1000


class Respond(Protocol):
    """Writes a complete response."""

    def __call__(
        self, status: int, body: bytes, content_type: bytes, headers: HeaderList = ...
    ) -> None: ...


class FastPath(Protocol):
    """Handles requests directly from the parser; neither call may block."""

    def find_route(self, url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> Route | None:
        """The route of a POST; None if the request must go through ASGI."""
        ...

    def handle(self, route: Route, body: bytes, respond: Respond) -> None:
        """Handle a complete request; `respond` is called once, now or later."""
        ...


class HeadCache:
    """Caches heads of requests and responses.

    A client repeats its headers byte by byte, so they are parsed once.
    """

    def __init__(self) -> None:
        self._requests: dict[bytes, tuple[Route, int]] = {}  # with the body's length
        self._default: HeaderList = []
        self._responses: dict[tuple[int, bytes], bytes] = {}  # with the default headers

    def find(self, data: bytes) -> tuple[Route, bytes] | None:
        """Route and body of a complete request whose head is cached."""
        end = data.find(HEAD_END) + len(HEAD_END)
        known = self._requests.get(data[:end])
        if known is None or len(data) - end != known[1]:
            return None
        return known[0], data[end:]

    def remember(self, data: bytes, route: Route, length: int) -> None:
        """Cache the route of a complete request, if no other one follows in `data`."""
        end = data.find(HEAD_END) + len(HEAD_END)
        if len(data) - end == length and end <= _MAX_HEAD_BYTES:
            if len(self._requests) >= _MAX_HEADS:
                self._requests.clear()
            self._requests[data[:end]] = route, length

    def response_head(self, status: int, content_type: bytes, default: HeaderList) -> bytes:
        """A response's first lines; `default` is a new list whenever the date has changed."""
        if default is not self._default:
            self._default, self._responses = default, {}
        known = self._responses.get((status, content_type))
        if known is None:
            headers = [*default, *([(b"content-type", content_type)] if content_type else [])]
            lines = [STATUS_LINE[status], *(b"%b: %b\r\n" % each for each in headers)]
            known = self._responses[status, content_type] = b"".join(lines)
        return known


class _Responder(Protocol):
    def send_response(
        self, request: FastRequest, status: int, body: bytes, content_type: bytes, more: HeaderList
    ) -> None: ...


class FastRequest:
    """A request on the fast path. Has the attributes that uvicorn expects of a request cycle."""

    __slots__ = (
        "_protocol",
        "disconnected",
        "keep_alive",
        "message_event",
        "pieces",
        "response_complete",
        "response_started",
        "route",
    )

    def __init__(self, protocol: _Responder, route: Route, keep_alive: bool) -> None:
        self.route = route
        self.pieces: list[bytes] = []  # of the body
        self.keep_alive = keep_alive
        self.disconnected = self.response_started = self.response_complete = False
        self.message_event = _NO_EVENT
        self._protocol = protocol

    def respond(
        self, status: int, body: bytes, content_type: bytes, headers: HeaderList = _NO_HEADERS
    ) -> None:
        """See `Respond`."""
        self.response_started = self.response_complete = True
        self._protocol.send_response(self, status, body, content_type, headers)


class _NoEvent:
    """Replaces the event by which uvicorn wakes an application that waits for the body."""

    def set(self) -> None:
        pass


_NO_EVENT = _NoEvent()
