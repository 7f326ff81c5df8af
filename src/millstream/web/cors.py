"""CORS: lets pages of other origins send, if the settings name them."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.web.allowed_hosts import is_same_origin
from millstream.web.asgi import Application, HeaderList, Message, Receive, Scope, Send
from millstream.web.problem import Problem

_METHODS = b"GET, HEAD, POST"
_EXPOSED = b"retry-after, ratelimit, ratelimit-policy, www-authenticate"
_MAX_AGE = b"600"
_ALLOWED = "millstream.origin"


class Cors:
    """An ASGI application that answers preflights, and marks another's answers for browsers.

    It stands before the gate: a preflight never carries a login.
    """

    def __init__(self, inner: Application, origins: Iterable[str]) -> None:
        self._inner = inner
        self._origins = frozenset(origin.encode() for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        allowed = self._allowed(origin)
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            more = _preflight(headers) if allowed else []
            await send({"type": "http.response.start", "status": 204, "headers": allowed + more})
            await send({"type": "http.response.body", "body": b""})
            return

        scope[_ALLOWED] = bool(allowed)

        async def marking(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [*allowed, (b"access-control-expose-headers", _EXPOSED)] if allowed else []
                # Caches must know that the answer depends on who asks, even where that is nobody.
                more = [*added, (b"vary", b"origin")]
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        await self._inner(scope, receive, marking)

    def _allowed(self, origin: bytes | None) -> HeaderList:
        if origin is None or (origin not in self._origins and b"*" not in self._origins):
            return []
        return [(b"access-control-allow-origin", origin if b"*" not in self._origins else b"*")]


def check_origin(scope: Scope, origin: str) -> None:
    """Problem 403 if a page sends whose origin is neither allowed nor ours.

    A browser sends some requests without asking first. Any page that someone opens on this machine
    could so write to a collector that lets in whoever is here.
    """
    if scope.get(_ALLOWED):
        return
    host = next((value for name, value in scope["headers"] if name == b"host"), b"")
    if not is_same_origin(origin, host.decode("latin-1")):
        raise Problem(
            403,
            f"a page of {origin[:200]} may not send; name the origin in collect.cors_origins",
        )


def _preflight(headers: dict[bytes, bytes]) -> HeaderList:
    # What the page asks for, since CloudEvents attributes may have any name; as far as it is sane.
    asked = headers.get(b"access-control-request-headers", b"")
    known = asked if len(asked) < 4096 and asked.replace(b" ", b"").isascii() else b""
    return [
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-allow-headers", known),
        (b"access-control-max-age", _MAX_AGE),
        (b"vary", b"origin, access-control-request-headers"),
    ]
