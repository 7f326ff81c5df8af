"""HTTP requests and responses of this tier, on top of `millstream.web.asgi`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import parse_qs, unquote

import msgspec

from millstream.errors import InvalidPosition, LogError, MillstreamError, QueryError
from millstream.serve.views.encoding import encode
from millstream.syntax.names import suggest
from millstream.web.asgi import HeaderList, Message, Receive, Scope, Send, read_body
from millstream.web.auth.caller import Caller, caller_of
from millstream.web.problem import CONTENT_TYPE, RETRY, Problem

_SAFE = (b"x-content-type-options", b"nosniff")
_BODY_SECONDS = 60.0
T = TypeVar("T")
JSON = b"application/json"


@dataclass(frozen=True, slots=True)
class Response:
    """A response; a body that is an iterator is sent piece by piece, as the client reads it."""

    body: bytes | AsyncIterator[bytes] = b""
    status: int = 200
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()

    async def send(self, send: Send, *, head: bool = False) -> None:
        if isinstance(self.body, bytes):
            length = (b"content-length", b"%d" % len(self.body))
            await send_head(send, self.status, self.content_type, [length, *self.headers])
            await send({"type": "http.response.body", "body": b"" if head else self.body})
            return
        await send_head(send, self.status, self.content_type, list(self.headers))
        if not head:
            async for piece in self.body:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def send_head(send: Send, status: int, content_type: bytes, headers: HeaderList) -> None:
    """Send the status and headers of a response."""
    all_headers = [(b"content-type", content_type), _SAFE, *headers]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})


def problem_of(error: MillstreamError) -> Problem:
    """The problem with an error's own words, and the status for its kind."""
    match error:
        case Problem():
            return error
        case QueryError() | InvalidPosition():
            return Problem(400, str(error))
        case LogError():
            return Problem(503, str(error), headers=[RETRY])
    return Problem(500, str(error))


def error_response(error: MillstreamError) -> Response:
    """An error as problem+json."""
    problem = problem_of(error)
    return Response(encode(problem.content), problem.status, CONTENT_TYPE, tuple(problem.headers))


def read_json(body: bytes, kind: type[T], what: str, *, remedy: str) -> T:
    """The object in a body; Problem 400 if it is none of that kind."""
    try:
        return msgspec.json.decode(body, type=kind)
    except RecursionError:
        raise Problem(400, f"cannot read {what}: the JSON is too deep") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Problem(400, f"cannot read {what}: {error}", remedy=remedy) from None


async def no_body() -> Message:
    """Receives for a request that has no body and does not wait for anything."""
    return {"type": "http.disconnect"}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """The parts of a request that this tier uses."""

    method: str
    path: tuple[str, ...]
    query: dict[str, str]
    headers: dict[bytes, bytes]
    raw_path: str
    caller: Caller
    address: str = ""  # of the client
    receive: Receive = field(default=no_body, repr=False)

    @classmethod
    def of(cls, scope: Scope, receive: Receive) -> HttpRequest:
        # The raw path is split, because a key may contain slashes, written %2F.
        raw_path = bytes(scope.get("raw_path") or scope["path"].encode())
        raw = raw_path.partition(b"?")[0].decode("latin-1")
        try:
            path = tuple(unquote(part, errors="strict") for part in raw.split("/")[1:])
            pairs = parse_qs(
                scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="strict"
            )
        except ValueError:
            raise Problem(400, "the address is not UTF-8") from None
        query = {name: values[-1] for name, values in pairs.items()}
        return cls(
            method=scope["method"],
            path=path,
            query=query,
            headers=dict(scope["headers"]),
            raw_path=raw,
            caller=caller_of(scope),
            address=(scope.get("client") or ("",))[0],
            receive=receive,
        )

    def number(self, name: str, default: float | None, low: float, high: float) -> float | None:
        """A number in the query string."""
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

    def integer(self, name: str, high: int) -> int | None:
        value = self.number(name, None, 0, high)
        return None if value is None else int(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false in the query string; the name alone means true."""
        text = self.query.get(name)
        if text is None:
            return default
        if text.lower() not in ("true", "1", "", "false", "0"):
            raise Problem(400, f"{name}={text[:40]!r} is neither true nor false")
        return text.lower() in ("true", "1", "")

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Problem 400 for unknown parameters: a misspelt filter must not be ignored silently."""
        names = list(known)
        for name in self.query:
            if name not in names:
                remedy = suggest(name[:40], names)
                raise Problem(400, f"there is no parameter {name[:40]!r}", remedy=remedy)

    async def body(self, limit: int) -> bytes:
        announced = int(self.headers.get(b"content-length", b"0"))
        return await read_body(self.receive, announced, limit, _BODY_SECONDS)
