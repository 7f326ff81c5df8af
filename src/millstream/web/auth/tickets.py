"""Tickets: stand in for a key or token where a browser can send no header.

A ticket is the caller itself, sealed (encrypted and authenticated) with a key that all servers of a
cluster derive from the one they share. So a ticket of one server opens a connection on another, and
nobody else can read or make one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import math
import secrets
import time
from collections.abc import Callable
from typing import Any

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from millstream.web.auth.caller import Caller
from millstream.web.auth.rights import Rights
from millstream.web.problem import RETRY, Problem

SECONDS = 30.0
_PURPOSE = b"millstream tickets 1"
_NONCE = 12  # bytes
_MAX_USED = 100_000
_MAX_BYTES = 12 * 1024


class TicketRefused(Exception):
    """A ticket is not accepted; the message says why, without the ticket."""


class _Sealed(msgspec.Struct, array_like=True):
    """The content of a ticket."""

    until: float
    kind: str
    name: str
    rights: tuple[str, ...]
    claims: dict[str, Any]
    expires: float | None  # of the login; None: never
    credential: bytes
    signer: bytes


class Tickets:
    """Issues tickets and redeems each of them once.

    Each server remembers the tickets it has redeemed until they expire. Without a key, which is
    read from the log, there are no tickets yet.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._cipher: AESGCM | None = None
        self._used: dict[bytes, float] = {}  # when each expires, by nonce; the oldest come first

    def use_key(self, cluster_key: bytes) -> None:
        """Derive the key of the tickets from the one that all servers share."""
        self._cipher = AESGCM(hmac.digest(cluster_key, _PURPOSE, hashlib.sha256))

    def issue(self, caller: Caller) -> tuple[str, float]:
        """A ticket for one connection of this caller, and when it expires."""
        until = min(self._clock() + SECONDS, caller.expires)
        sealed = _Sealed(
            until,
            caller.kind,
            caller.name,
            caller.rights.words,
            dict(caller.claims),
            None if math.isinf(caller.expires) else caller.expires,
            caller.credential,
            caller.signer,
        )
        nonce = secrets.token_bytes(_NONCE)
        try:
            content = msgspec.msgpack.encode(sealed)
        except (OverflowError, ValueError, RecursionError):  # a number of 400 digits, for example
            raise _no_room() from None
        text = nonce + self._key().encrypt(nonce, content, _PURPOSE)
        ticket = base64.urlsafe_b64encode(text).rstrip(b"=").decode()
        if len(ticket) > _MAX_BYTES:
            raise _no_room()
        return ticket, until

    def redeem(self, ticket: bytes) -> Caller:
        """The caller of a ticket, which is spent now; TicketRefused."""
        nonce, sealed = self._open(ticket)
        now = self._clock()
        if sealed.until <= now:
            raise TicketRefused("it has expired")
        if nonce in self._used:
            raise TicketRefused("it was used already")
        self._remember(nonce, sealed.until, now)
        return Caller(
            sealed.kind,
            sealed.name,
            Rights(sealed.rights),
            claims=sealed.claims,
            expires=math.inf if sealed.expires is None else sealed.expires,
            credential=sealed.credential,
            signer=sealed.signer,
        )

    def _open(self, ticket: bytes) -> tuple[bytes, _Sealed]:
        if len(ticket) > _MAX_BYTES:
            raise TicketRefused("it is too long")
        try:
            # Only one spelling of each ticket: the last characters may have bits that do not count.
            text = base64.urlsafe_b64decode(ticket + b"=" * (-len(ticket) % 4))
            if base64.urlsafe_b64encode(text).rstrip(b"=") != ticket:
                raise TicketRefused("it is not a ticket of this system")
            nonce, rest = text[:_NONCE], text[_NONCE:]
            content = self._key().decrypt(nonce, rest, _PURPOSE)
            return nonce, msgspec.msgpack.decode(content, type=_Sealed)
        except (binascii.Error, ValueError, InvalidTag, msgspec.DecodeError):
            raise TicketRefused("it is not a ticket of this system") from None

    def _remember(self, nonce: bytes, until: float, now: float) -> None:
        while self._used and next(iter(self._used.values())) <= now:
            del self._used[next(iter(self._used))]
        if len(self._used) >= _MAX_USED:  # forgetting one would allow it again
            raise Problem(503, "too many tickets were used; try again later", headers=[RETRY])
        self._used[nonce] = until

    def _key(self) -> AESGCM:
        if self._cipher is None:
            raise Problem(503, "the server is still reading the log", headers=[RETRY])
        return self._cipher


def _no_room() -> Problem:
    return Problem(
        413, "the claims of the token do not fit into a ticket; send the token as a header instead"
    )
