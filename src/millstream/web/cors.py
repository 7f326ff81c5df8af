"""CORS: lets pages of other origins call, if the settings name them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from millstream.web.asgi import Application, HeaderList, Message, Receive, Scope, Send
from millstream.web.problem import Problem

_METHODS = b"GET, HEAD, POST"
_EXPOSED = (
    b"access-control-expose-headers",
    b"retry-after, ratelimit, ratelimit-policy, www-authenticate",
)
_MAX_AGE = b"600"
_ALLOWED = "millstream.origin"


class CorsMiddleware:
    """An ASGI application that answers preflight requests, and adds CORS headers to responses.

    It comes before authentication, because browsers send preflight requests without credentials.
    """

    def __init__(self, inner: Application, origins: Iterable[str]) -> None:
        self._inner = inner
        self._origins = frozenset(origin.encode() for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        headers = dict(scope["headers"])
        allowed = self._allow_origin(headers.get(b"origin"))
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            more = _preflight(headers) if allowed else []
            await send({"type": "http.response.start", "status": 204, "headers": allowed + more})
            await send({"type": "http.response.body", "body": b""})
            return

        scope[_ALLOWED] = bool(allowed)
        added = [*allowed, _EXPOSED] if allowed else []
        # Caches must know that the response depends on the origin, even without CORS headers.
        added.append((b"vary", b"origin"))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        await self._inner(scope, receive, send_with_headers)

    def _allow_origin(self, origin: bytes | None) -> HeaderList:
        if origin is None or (origin not in self._origins and b"*" not in self._origins):
            return []
        return [(b"access-control-allow-origin", origin if b"*" not in self._origins else b"*")]


def is_same_origin(origin: str, host: str) -> bool:
    """Whether the request came from a page of this server, or not from a page at all."""
    return not origin or origin.partition("://")[2] == host


def allows_origin(origins: Collection[str], origin: str, host: str) -> bool:
    """Whether a page of this origin may call: its own server, or one that allows the origin."""
    return "*" in origins or origin in origins or is_same_origin(origin, host)


def check_origin(scope: Scope, origin: str, setting: str) -> None:
    """Problem 403 if the request comes from a page of another origin that is not allowed.

    Browsers send some requests without a preflight request. Without this check, any page that
    someone opens on this machine could call a server that accepts local requests. `setting` lists
    the allowed origins.
    """
    if scope.get(_ALLOWED):
        return
    host = next((value for name, value in scope["headers"] if name == b"host"), b"")
    if not is_same_origin(origin, host.decode("latin-1")):
        raise Problem(403, f"a page of {origin[:200]} may not send; name the origin in {setting}")


def _preflight(headers: dict[bytes, bytes]) -> HeaderList:
    # Any header is allowed that the page asks for, because CloudEvents attributes have any name.
    asked = headers.get(b"access-control-request-headers", b"")
    allowed = asked if len(asked) < 4096 and asked.replace(b" ", b"").isascii() else b""
    return [
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-allow-headers", allowed),
        (b"access-control-max-age", _MAX_AGE),
        (b"vary", b"origin, access-control-request-headers"),
    ]
