"""An issuer of tokens with real keys, and a web server for its public keys."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.warnings import InsecureKeyLengthWarning

ISSUER, AUDIENCE = "https://login.example", "millstream"


@cache
def private_key(algorithm: str, number: int = 0) -> Any:
    """A key for the algorithm; each number gives another key."""
    match algorithm:
        case "RS256":
            return rsa.generate_private_key(65537, 2048)
        case "RS256-weak":
            return rsa.generate_private_key(65537, 1024)
        case "ES256":
            return ec.generate_private_key(ec.SECP256R1())
        case "ES384":
            return ec.generate_private_key(ec.SECP384R1())
    return ed25519.Ed25519PrivateKey.generate()


def public_pem(key: PrivateKeyTypes) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def jwk(key: Any, kid: str | None, **more: Any) -> dict[str, Any]:
    """The public half, as an issuer publishes it."""
    public = key.public_key()
    match key:
        case rsa.RSAPrivateKey():
            entry = jwt.algorithms.RSAAlgorithm.to_jwk(public, as_dict=True)
        case ec.EllipticCurvePrivateKey():
            entry = jwt.algorithms.ECAlgorithm.to_jwk(public, as_dict=True)
        case _:
            entry = jwt.algorithms.OKPAlgorithm.to_jwk(public, as_dict=True)
    entry.pop("key_ops", None)
    return {**entry, **({} if kid is None else {"kid": kid}), **more}


def jwks(*entries: dict[str, Any]) -> bytes:
    return json.dumps({"keys": entries}).encode()


def claims(**more: Any) -> dict[str, Any]:
    """The claims of a valid token, with changes; None removes a claim."""
    now = int(time.time())
    usual = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "shop",
        "iat": now,
        "exp": now + 300,
        "streams": ["clicks", "na*"],
    }
    return {name: value for name, value in {**usual, **more}.items() if value is not None}


def token(
    algorithm: str = "ES256",
    *,
    key: Any = None,
    kid: str | None = "",
    headers: Mapping[str, Any] | None = None,
    **more: Any,
) -> str:
    """A signed token; by default its key is named after its algorithm."""
    named = {} if kid is None else {"kid": kid or algorithm}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureKeyLengthWarning)
        return jwt.encode(
            claims(**more),
            key or private_key(algorithm),
            algorithm=algorithm,
            headers={**named, **(headers or {})},
        )


def unsigned(header: Any, payload: Any, signature: bytes = b"") -> str:
    """A token of three arbitrary parts."""
    parts = [json.dumps(each).encode() for each in (header, payload)]
    return ".".join(base64.urlsafe_b64encode(p).rstrip(b"=").decode() for p in [*parts, signature])


class Web:
    """Serves one document over HTTP, and counts the requests."""

    def __init__(self) -> None:
        self.content: bytes | None = None  # None: it fails
        self.status = "200 OK"
        self.asked = 0
        self.url = ""
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/jwks.json?secret=hidden"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        body = self.content or b""
        status = self.status if self.content is not None else "500 Oops"
        head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()
