"""Finds out who calls, by key, token, certificate or ticket: for HTTP and for WebSockets alike."""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from millstream.web.auth.api_keys import ApiKey, ApiKeys, digest
from millstream.web.auth.caller import Caller
from millstream.web.auth.jwt import IssuerKeysUnavailable, JwtVerifier, TokenRefused, is_token
from millstream.web.auth.rate import RateLimiter
from millstream.web.auth.rights import EVERYTHING, Rights, compile_patterns
from millstream.web.auth.settings import AccessSettings
from millstream.web.auth.tickets import TicketRefused, Tickets
from millstream.web.problem import RETRY, Problem

_MAX_KNOWN = 10_000
# A wrong token costs a check of its signature, about 50 µs. This limits that work by address.
_WRONG_TOKENS_PER_SECOND = 20.0


class Authenticator:
    """Authenticates callers as the settings say.

    `operator` is the hash of the key with which commands on this machine log in. `certified` are
    the rights of client certificates if the settings name none.
    """

    def __init__(
        self,
        settings: AccessSettings,
        keys_file: Path,
        *,
        operator: bytes = b"",
        certified: Rights = EVERYTHING,
        tickets: Tickets | None = None,
    ) -> None:
        self._settings = settings
        self._operator = Caller("operator", "operator", EVERYTHING, credential=operator)
        self._certified = certified
        self._tickets = tickets
        self.api_keys = ApiKeys(keys_file) if "key" in settings.auth else None
        self.jwt_verifier = JwtVerifier(settings) if "jwt" in settings.auth else None
        self._known: dict[bytes, Caller] = {}  # by the hash of their credential
        self._versions = self.versions
        self._wrong_tokens = RateLimiter(5.0)

    @property
    def versions(self) -> tuple[int, int]:
        """Changes when keys or tokens that were accepted before may not be any more."""
        return (
            0 if self.api_keys is None else self.api_keys.version,
            0 if self.jwt_verifier is None else self.jwt_verifier.keys.version,
        )

    async def authenticate(
        self,
        headers: Iterable[tuple[bytes, bytes]],
        address: str,
        certificate: tuple[str, ...] = (),
        ticket: bytes = b"",
    ) -> Caller:
        """The caller of a request from `address`; Problem if it is not known.

        `certificate` has the names in the client's certificate. A ticket counts only if there is no
        key or token.
        """
        if not self._settings.auth:
            return Caller("address", address, EVERYTHING)
        credential = _credential(headers)
        if credential is not None:
            return await self.by_credential(credential, address)
        if ticket:
            return self._by_ticket(ticket)
        if certificate and "certificate" in self._settings.auth:
            return self._by_certificate(certificate)
        raise self._unauthorized("no key or token came with the request")

    async def by_credential(self, credential: bytes, address: str) -> Caller:
        """The caller with this key or token; Problem if it is not accepted."""
        if self.versions != self._versions:  # a revoked key must not be accepted any more
            self._known.clear()
            self._versions = self.versions
        hashed = digest(credential)
        known = self._known.get(hashed)
        if known is None or known.expires <= time.time():
            if is_token(credential) and self.jwt_verifier is not None:
                known = await self._by_token(self.jwt_verifier, credential, address)
            else:
                known = self._by_key(hashed)
            if len(self._known) >= _MAX_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[hashed] = known
        return known

    def is_valid(self, caller: Caller) -> bool:
        """Whether a caller that was authenticated before would be so now, with the same rights."""
        if caller.expires <= time.time():
            return False
        match caller.kind:
            case "key":
                key = self.api_keys.find(caller.credential) if self.api_keys is not None else None
                return key is not None and _gives(key, caller)
            case "jwt":
                verifier = self.jwt_verifier
                return verifier is not None and verifier.keys.has(caller.signer)
            case "operator":
                return self._is_operator(caller.credential)
            case "certificate":
                return "certificate" in self._settings.auth
        return not self._settings.auth  # an address

    def _by_key(self, hashed: bytes) -> Caller:
        if self._is_operator(hashed):
            return self._operator
        key = self.api_keys.find(hashed) if self.api_keys is not None else None
        if key is None:
            raise self._unauthorized("the key is unknown, revoked or expired", "invalid_token")
        return _key_caller(key, hashed)

    def _is_operator(self, hashed: bytes) -> bool:
        expected = self._operator.credential
        return bool(expected) and hmac.compare_digest(hashed, expected)

    async def _by_token(self, verifier: JwtVerifier, token: bytes, address: str) -> Caller:
        wrong = self._wrong_tokens.bucket(address, _WRONG_TOKENS_PER_SECOND)
        if wrong.left() < 1:
            raise Problem(429, "too many wrong tokens from this address", headers=[RETRY])
        try:
            return replace(await verifier.verify(token), credential=digest(token))
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

    def _by_ticket(self, ticket: bytes) -> Caller:
        try:
            if self._tickets is None:
                raise TicketRefused("this server issues none")
            caller = self._tickets.redeem(ticket)
            if not self.is_valid(caller):
                raise TicketRefused("the login that asked for it is not valid any more")
        except TicketRefused as refused:
            raise self._unauthorized(f"the ticket is refused: {refused}", "invalid_token") from None
        return caller

    def _by_certificate(self, names: tuple[str, ...]) -> Caller:
        settings = self._settings
        if not settings.tls_client_streams and not settings.tls_client_rights:
            return Caller("certificate", names[0], self._certified)
        granted = {
            name: [f"write:{each}" for each in streams]
            for name, streams in settings.tls_client_streams.items()
        }
        words = [
            word
            for rights in (granted, settings.tls_client_rights)
            for name, listed in rights.items()
            if any(map(compile_patterns([name]).fullmatch, names))
            for word in listed
        ]
        return Caller("certificate", names[0], Rights(words))

    def _unauthorized(self, why: str, error: str = "") -> Problem:
        challenge = 'Bearer realm="millstream"' + (f', error="{error}"' if error else "")
        return Problem(
            401,
            f"{why}; send `Authorization: Bearer KEY-OR-TOKEN`, or `X-API-Key: KEY`",
            headers=[(b"www-authenticate", challenge.encode())],
            logins=self._settings.auth,
        )


def _key_caller(key: ApiKey, hashed: bytes) -> Caller:
    return Caller(
        "key",
        key.name,
        Rights(key.words),
        key.rate,
        key.claims,
        key.expires.timestamp() if key.expires else math.inf,
        hashed,
    )


def _gives(key: ApiKey, caller: Caller) -> bool:
    """Whether the key still makes its bearer this caller."""
    return (key.name, key.words, key.claims) == (caller.name, caller.rights.words, caller.claims)


def _credential(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    found = None
    for name, value in headers:
        if name == b"authorization":
            scheme, _, rest = value.partition(b" ")
            return rest.strip() if scheme.lower() == b"bearer" else b""
        if name == b"x-api-key":
            found = value.strip()
    return found
