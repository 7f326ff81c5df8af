"""Authentication: password, MD5, or SCRAM-SHA-256 (RFC 5802, RFC 7677)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import unicodedata

from millstream.connectors.reading.reconnecting_reader import ConnectionLost

MECHANISM = "SCRAM-SHA-256"
# Limits the work that a malicious server can demand. PostgreSQL's default is 4,096.
_MOST_ITERATIONS = 1_000_000


def md5(user: str, password: str, salt: bytes) -> str:
    """The answer to AuthenticationMD5Password."""
    inner = hashlib.md5(password.encode() + user.encode(), usedforsecurity=False).hexdigest()
    outer = hashlib.md5(inner.encode() + salt, usedforsecurity=False).hexdigest()
    return f"md5{outer}"


class Scram:
    """One exchange: `first`, then `answer` to the server's challenge, then `check` its proof."""

    def __init__(self, password: str, nonce: str = "") -> None:
        self._password = _prepared(password)
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._bare = f"n=,r={self._nonce}"  # the startup message has named the user
        self._signature = b""

    def first(self) -> bytes:
        """The first message; `n` means no TLS channel binding."""
        return f"n,,{self._bare}".encode()

    async def answer(self, challenge: bytes) -> bytes:
        """The proof that we know the password. ConnectionLost if the challenge is invalid."""
        try:
            fields = _fields(challenge)
            nonce, salt = fields["r"], base64.b64decode(fields["s"], validate=True)
            iterations = int(fields["i"])
        except (KeyError, ValueError):
            raise ConnectionLost("the server's SCRAM challenge cannot be read") from None
        if not nonce.startswith(self._nonce) or not 0 < iterations <= _MOST_ITERATIONS:
            raise ConnectionLost(
                "the server's SCRAM challenge is not for us, or asks for too much work"
            )
        salted = await asyncio.to_thread(
            hashlib.pbkdf2_hmac, "sha256", self._password, salt, iterations
        )
        client_key = _hmac(salted, b"Client Key")
        without_proof = f"c=biws,r={nonce}"  # biws is base64 of "n,,"
        signed = f"{self._bare},{challenge.decode()},{without_proof}".encode()
        self._signature = _hmac(_hmac(salted, b"Server Key"), signed)
        proof = _xor(client_key, _hmac(hashlib.sha256(client_key).digest(), signed))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, final: bytes) -> None:
        """ConnectionLost if the server does not know the password: it is not the real one."""
        expected = b"v=" + base64.b64encode(self._signature)
        if not self._signature or not hmac.compare_digest(final.split(b",")[0], expected):
            raise ConnectionLost(
                "the server could not prove that it knows the password: not the real one?"
            )


def _fields(message: bytes) -> dict[str, str]:
    return {part[:1]: part[2:] for part in message.decode().split(",")}


def _prepared(password: str) -> bytes:
    # The part of SASLprep that matters: Unicode normalization. ASCII stays as it is.
    return unicodedata.normalize("NFKC", password).encode()


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
