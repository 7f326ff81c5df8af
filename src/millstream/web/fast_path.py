"""A fast path: requests that are answered without ASGI, so without a task, scope and messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from millstream.web.asgi import HeaderList

Route = Any  # what a tier's fast path needs to know of a request; nothing here looks into it

HEAD_END = b"\r\n\r\n"
_NO_HEADERS: HeaderList = []
_MOST_KNOWN, _LARGEST_KNOWN = 1000, 1000  # heads, and bytes of one


class Respond(Protocol):
    """Writes a whole answer."""

    def __call__(
        self, status: int, body: bytes, content_type: bytes, headers: HeaderList = ...
    ) -> None: ...


class FastPath(Protocol):
    """Takes requests straight from the parser; neither call may block."""

    def find_route(self, url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> Route | None:
        """The route of a POST; None: the request must go through ASGI."""
        ...

    def handle(self, route: Route, body: bytes, respond: Respond) -> None:
        """Take a whole request; `respond` is called once, now or later."""
        ...


class _Known(NamedTuple):
    route: Route
    length: int  # of the body


class HeadCache:
    """Heads of requests and answers that were read or written before, byte by byte the same.

    A sender says the same each time: it is understood once.
    """

    def __init__(self) -> None:
        self._requests: dict[bytes, _Known] = {}
        self._default: HeaderList = []
        self._answers: dict[tuple[int, bytes], bytes] = {}  # with those

    def find(self, data: bytes) -> tuple[Route, bytes] | None:
        """Route and body of a whole request whose head is known."""
        end = data.find(HEAD_END) + len(HEAD_END)
        known = self._requests.get(data[:end])
        if known is None or len(data) - end != known.length:
            return None
        return known.route, data[end:]

    def remember(self, data: bytes, route: Route, length: int) -> None:
        """A whole request, without another behind it, goes that way."""
        end = data.find(HEAD_END) + len(HEAD_END)
        if len(data) - end == length and end <= _LARGEST_KNOWN:
            if len(self._requests) >= _MOST_KNOWN:
                self._requests.clear()
            self._requests[data[:end]] = _Known(route, length)

    def response_head(self, status: int, content_type: bytes, default: HeaderList) -> bytes:
        """An answer's first lines; `default` is another list whenever the date has changed."""
        if default is not self._default:
            self._default, self._answers = default, {}
        known = self._answers.get((status, content_type))
        if known is None:
            headers = [*default, *([(b"content-type", content_type)] if content_type else [])]
            lines = [STATUS_LINE[status], *(b"%b: %b\r\n" % each for each in headers)]
            known = self._answers[status, content_type] = b"".join(lines)
        return known


class _Answering(Protocol):
    def answer(
        self, exchange: Exchange, status: int, body: bytes, content_type: bytes, more: HeaderList
    ) -> None: ...


class Exchange:
    """A request on the fast path; to uvicorn it looks like one that the application answers."""

    __slots__ = (
        *("_protocol", "disconnected", "keep_alive", "message_event", "pieces"),
        *("response_complete", "response_started", "route"),
    )

    def __init__(self, protocol: _Answering, route: Route, keep_alive: bool) -> None:
        self.route = route
        self.pieces: list[bytes] = []  # of the body
        self.keep_alive = keep_alive
        self.disconnected = self.response_started = self.response_complete = False
        self.message_event = _NOBODY
        self._protocol = protocol

    def respond(
        self, status: int, body: bytes, content_type: bytes, headers: HeaderList = _NO_HEADERS
    ) -> None:
        """See `Respond`."""
        self.response_started = self.response_complete = True
        self._protocol.answer(self, status, body, content_type, headers)


class _Nobody:
    """Where uvicorn would wake up an application that waits for the body: none does."""

    def set(self) -> None:
        pass


_NOBODY = _Nobody()
