"""Middleware that authenticates callers, checks their rights and limits their rate.

A server without logins and rate limits runs without it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from millstream.web.asgi import (
    Application,
    HeaderList,
    Message,
    Receive,
    Scope,
    Send,
    send_problem,
)
from millstream.web.auth.api_keys import ApiKeys, digest
from millstream.web.auth.caller import Caller, set_caller
from millstream.web.auth.jwt import IssuerKeysUnavailable, JwtVerifier, TokenRefused, is_token
from millstream.web.auth.rate import RateLimiter, TokenBucket, set_bucket
from millstream.web.auth.rights import EVERYTHING, Rights, compile_patterns
from millstream.web.auth.settings import AccessSettings
from millstream.web.connections import CERTIFICATE, network_of
from millstream.web.problem import RETRY, Problem

_OPEN = "/health/"
_MAX_KNOWN = 10_000
# A wrong token costs a check of its signature, about 50 µs. This limits that work by address.
_WRONG_TOKENS_PER_SECOND = 20.0
_REASONS = {401: "login", 403: "rights", 429: "rate"}  # names of the counters


class AuthenticationMiddleware:
    """An ASGI application that calls another one with authenticated requests only.

    `authorize(caller, path)` raises a Problem if the caller may not use the path at all.
    """

    def __init__(
        self,
        inner: Application,
        settings: AccessSettings,
        keys_file: Path,
        authorize: Callable[[Caller, str], None],
    ) -> None:
        self._inner = inner
        self._settings = settings
        self._authorize = authorize
        self.api_keys = ApiKeys(keys_file) if "key" in settings.auth else None
        self.jwt_verifier = JwtVerifier(settings) if "jwt" in settings.auth else None
        # Authenticated callers by the hash of their credential, and when that expires.
        self._known: dict[bytes, tuple[Caller, float]] = {}
        self._versions = (0, 0)
        self._rates = RateLimiter(settings.rate_burst)
        self._wrong_tokens = RateLimiter(5.0)
        self.refused: Counter[str] = Counter()  # by reason

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if scope["type"] != "http" or path.startswith(_OPEN):
            await self._inner(scope, receive, send)
            return
        try:
            caller = await self._authenticate(scope)
            bucket = self._take_token(caller)
            self._authorize(caller, path)
        except Problem as problem:
            self.refused[_REASONS.get(problem.status, "no_keys")] += 1
            await send_problem(send, problem)
            return
        set_caller(scope, caller)
        if bucket is not None:
            set_bucket(scope, bucket)
            send = _with_headers(send, bucket)
        await self._inner(scope, receive, send)

    async def _authenticate(self, scope: Scope) -> Caller:
        settings = self._settings
        if not settings.auth:
            return Caller("address", _address(scope), EVERYTHING)
        credential = _credential(scope["headers"])
        if credential is None:
            certificate = scope.get(CERTIFICATE)
            if certificate and "certificate" in settings.auth:
                return self._by_certificate(certificate)
            raise self._unauthorized("no key or token came with the request")
        versions = (
            0 if self.api_keys is None else self.api_keys.version,
            0 if self.jwt_verifier is None else self.jwt_verifier.keys.version,
        )
        if versions != self._versions:  # a revoked key must not be accepted any more
            self._known.clear()
            self._versions = versions
        hashed = digest(credential)
        known = self._known.get(hashed)
        if known is None or known[1] <= time.time():
            if is_token(credential) and self.jwt_verifier is not None:
                known = await self._by_token(self.jwt_verifier, credential, _address(scope))
            else:
                known = self._by_key(hashed)
            if len(self._known) >= _MAX_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[hashed] = known
        return known[0]

    def _by_key(self, hashed: bytes) -> tuple[Caller, float]:
        key = self.api_keys.find(hashed) if self.api_keys is not None else None
        if key is None:
            raise self._unauthorized("the key is unknown, revoked or expired", "invalid_token")
        until = key.expires.timestamp() if key.expires else float("inf")
        return Caller("key", key.name, Rights.of({"write": key.write}), key.rate), until

    async def _by_token(
        self, verifier: JwtVerifier, token: bytes, address: str
    ) -> tuple[Caller, float]:
        wrong = self._wrong_tokens.bucket(address, _WRONG_TOKENS_PER_SECOND)
        if wrong.left() < 1:
            raise Problem(429, "too many wrong tokens from this address", headers=[RETRY])
        try:
            return await verifier.verify(token)
        except TokenRefused as refused:
            wrong.charge(1)
            why = f"the token is refused: {refused}"
            raise self._unauthorized(why, "invalid_token") from None
        except IssuerKeysUnavailable:
            raise Problem(
                503,
                "the issuer's keys could not be read so far; nothing was accepted, try again",
                headers=[(b"retry-after", b"2")],
            ) from None

    def _by_certificate(self, names: tuple[str, ...]) -> Caller:
        granted = self._settings.tls_client_streams
        if not granted:
            return Caller("certificate", names[0], EVERYTHING)
        patterns = [
            pattern
            for name in granted
            if any(map(compile_patterns([name]).fullmatch, names))
            for pattern in granted[name]
        ]
        return Caller("certificate", names[0], Rights.of({"write": patterns}))

    def _take_token(self, caller: Caller) -> TokenBucket | None:
        rate = self._settings.rate if caller.rate is None else caller.rate
        return self._rates.admit(f"{caller.kind} {caller.name}", rate) if rate else None

    def _unauthorized(self, why: str, error: str = "") -> Problem:
        challenge = 'Bearer realm="millstream"' + (f', error="{error}"' if error else "")
        return Problem(
            401,
            f"{why}; send `Authorization: Bearer KEY-OR-TOKEN`, or `X-API-Key: KEY`",
            headers=[(b"www-authenticate", challenge.encode())],
            logins=self._settings.auth,
        )


def _credential(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    found = None
    for name, value in headers:
        if name == b"authorization":
            scheme, _, rest = value.partition(b" ")
            return rest.strip() if scheme.lower() == b"bearer" else b""
        if name == b"x-api-key":
            found = value.strip()
    return found


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
