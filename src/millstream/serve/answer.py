"""Answers to HTTP requests, and what a request asks."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote

from millstream.errors import InvalidPosition, LogError, MillstreamError, QueryError
from millstream.serve.views.encoding import encode
from millstream.web.problem import CONTENT_TYPE, RETRY
from millstream.web.problem import Problem as Problem

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

SAFE = ((b"x-content-type-options", b"nosniff"),)
JSON = b"application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response."""

    body: bytes = b""
    status: int = 200
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()

    async def send(self, send: Send, *, head: bool = False) -> None:
        length = (b"content-length", b"%d" % len(self.body))
        await start(send, self.status, self.content_type, (length, *self.headers))
        await send({"type": "http.response.body", "body": b"" if head else self.body})


async def start(send: Send, status: int, content_type: bytes, headers: Headers = ()) -> None:
    """Send a response's head."""
    all_headers = [(b"content-type", content_type), *SAFE, *headers]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})


def problem(error: MillstreamError) -> Answer:
    """An error as RFC 9457 writes it, with the error's own words."""
    match error:
        case Problem():
            found = error
        case QueryError() | InvalidPosition():
            found = Problem(400, str(error))
        case LogError():
            found = Problem(503, str(error), headers=[RETRY])
        case _:
            found = Problem(500, str(error))
    return Answer(encode(found.content), found.status, CONTENT_TYPE, tuple(found.headers))


@dataclass(frozen=True, slots=True)
class Request:
    """What an HTTP request asks."""

    method: str
    path: tuple[str, ...]
    query: dict[str, str]
    headers: dict[bytes, bytes]
    raw_path: str = ""
    receive: Receive | None = field(default=None, repr=False)

    @classmethod
    def of(cls, scope: Scope, receive: Receive) -> Request:
        # From the raw path, since a key may have slashes in it, written %2F.
        raw = (
            bytes(scope.get("raw_path") or scope["path"].encode())
            .partition(b"?")[0]
            .decode("latin-1")
        )
        try:
            path = tuple(unquote(part, errors="strict") for part in raw.split("/")[1:])
            pairs = parse_qs(
                scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="strict"
            )
        except ValueError:
            raise Problem(400, "the address is not UTF-8") from None
        query = {name: values[-1] for name, values in pairs.items()}
        return cls(scope["method"], path, query, dict(scope["headers"]), raw, receive)

    def number(self, name: str, default: float | None, low: float, high: float) -> float | None:
        """A number of the query string."""
        text = self.query.get(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise Problem(400, f"{name}={text[:40]!r} is not a number from {low:g} to {high:g}")
        return value

    def whole(self, name: str, high: int) -> int | None:
        value = self.number(name, None, 0, high)
        return None if value is None else int(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A yes or no of the query string; the name alone means yes."""
        text = self.query.get(name)
        if text is None:
            return default
        if text.lower() not in ("true", "1", "", "false", "0"):
            raise Problem(400, f"{name}={text[:40]!r} is neither true nor false")
        return text.lower() in ("true", "1", "")

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """A misspelt parameter must not be a filter that silently does nothing."""
        names = list(known)
        for name in self.query:
            if name not in names:
                close = difflib.get_close_matches(name, names, 1)
                remedy = f"did you mean {close[0]}?" if close else f"there are: {', '.join(names)}"
                raise Problem(400, f"there is no parameter {name[:40]!r}", remedy=remedy)

    async def body(self, limit: int) -> bytes:
        assert self.receive is not None
        parts, size = [], 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Problem(400, "the client went away")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise Problem(413, f"the body is larger than {limit} bytes")
            if not message.get("more_body"):
                return b"".join(parts)
