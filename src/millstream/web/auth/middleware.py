"""Middleware that authenticates callers, checks their rights and limits their rate.

A collector without logins and rate limits runs without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from urllib.parse import unquote_to_bytes

from millstream.web.asgi import (
    Application,
    HeaderList,
    Message,
    Receive,
    Scope,
    Send,
    send_problem,
)
from millstream.web.auth.authenticator import Authenticator
from millstream.web.auth.caller import Caller, set_caller
from millstream.web.auth.rate import RateLimiter, TokenBucket, set_bucket
from millstream.web.auth.rights import Rights
from millstream.web.auth.settings import AccessSettings
from millstream.web.auth.usage import Usage, set_usage
from millstream.web.connections import CERTIFICATE, network_of
from millstream.web.problem import Problem

_REASONS = {401: "login", 403: "rights", 429: "rate"}  # names of the counters
_NOTHING = Rights([])
_TICKET = b"ticket="


class AuthenticationMiddleware:
    """An ASGI application that calls another one with authenticated requests only.

    `is_open(path)`: everybody may use the path. `authorize(caller, path)` raises a Problem if the
    caller may not use it at all. `unit` is what the rate counts: events, or requests. A key's own
    rate is one of events.
    """

    def __init__(
        self,
        inner: Application,
        settings: AccessSettings,
        authenticator: Authenticator,
        *,
        is_open: Callable[[str], bool],
        authorize: Callable[[Caller, str], None] | None = None,
        unit: str = "events",
        usage: Usage | None = None,
    ) -> None:
        self.usage = usage or Usage()
        self._inner = inner
        self._settings = settings
        self._authenticator = authenticator
        self._is_open = is_open
        self._authorize = authorize
        self._unit = unit
        self._rates = RateLimiter(settings.rate_burst, unit=unit)
        self.refused: Counter[str] = Counter()  # by reason

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        if self._is_open(path):
            # What is open to everybody needs no right; so none is given.
            set_caller(scope, Caller("address", _address(scope), _NOTHING))
            await self._inner(scope, receive, send)
            return
        try:
            bucket = await self.admit(scope, takes_ticket=_is_event_stream(scope))
        except Problem as problem:
            await send_problem(send, problem)
            return
        if bucket is not None:
            set_bucket(scope, bucket)
            send = _with_headers(send, bucket)
        await self._inner(scope, receive, send)

    async def admit(self, scope: Scope, *, takes_ticket: bool) -> TokenBucket | None:
        """Set the caller of a request, and take a token of its rate; Problem if it is refused.

        `takes_ticket`: the request may show a ticket instead of a key or token. The ticket is
        removed from the query string, so that nothing behind this can repeat it.
        """
        ticket = _take_ticket(scope)
        try:
            caller = await self._authenticator.authenticate(
                scope["headers"],
                _address(scope),
                scope.get(CERTIFICATE, ()),
                ticket if takes_ticket else b"",
            )
            bucket = self._take_token(caller)
            if self._authorize is not None:
                self._authorize(caller, scope.get("path", ""))
        except Problem as problem:
            self.refused[_REASONS.get(problem.status, "no_keys")] += 1
            raise
        set_caller(scope, caller)
        usage = self.usage.of(caller)
        usage.requests += 1
        set_usage(scope, usage)
        return bucket

    def _take_token(self, caller: Caller) -> TokenBucket | None:
        rate = self._settings.rate
        if caller.rate is not None and self._unit == "events":
            rate = caller.rate
        return self._rates.admit(caller.label, rate) if rate else None


def _take_ticket(scope: Scope) -> bytes:
    query: bytes = scope.get("query_string", b"")
    if _TICKET not in query:
        return b""
    parts = query.split(b"&")
    tickets = [part for part in parts if part.startswith(_TICKET)]
    scope["query_string"] = b"&".join(part for part in parts if part not in tickets)
    return unquote_to_bytes(tickets[-1].removeprefix(_TICKET)) if tickets else b""


def _is_event_stream(scope: Scope) -> bool:
    return any(
        name == b"accept" and b"text/event-stream" in value for name, value in scope["headers"]
    )


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return network_of(client[0]) if client else "unknown"


def _with_headers(send: Send, bucket: TokenBucket) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers: HeaderList = [*message.get("headers", ()), *bucket.headers()]
            message = {**message, "headers": headers}
        await send(message)

    return send_with_headers
