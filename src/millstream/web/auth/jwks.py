"""An issuer's public keys (JWKS), from a file or a URL, read again in the background."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from millstream.errors import MillstreamError, SettingsError
from millstream.syntax.urls import without_secrets

ALGORITHMS = ("RS256", "ES256", "EdDSA")
_MAX_BYTES = 256 * 1024
_FETCH_SECONDS = 5.0
_MIN_RSA_BITS = 2048

_log = logging.getLogger(__name__)


class IssuerKeys:
    """The issuer's keys as last read; a failed read keeps the old ones."""

    def __init__(
        self,
        source: str,
        *,
        refresh: float,
        refresh_least: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._shown = without_secrets(source) if "://" in source else source
        self._is_url = "://" in source
        self._refresh = refresh
        self._refresh_least = refresh_least
        self._clock = clock
        self._keys: list[tuple[str | None, str, Any]] = []  # kid, algorithm, key
        self._fingerprints: frozenset[bytes] = frozenset()
        self._read_at = -float("inf")
        self._reading: asyncio.Task[None] | None = None
        self.version = 0  # grows when the keys change: tokens verified before may be invalid
        if not self._is_url:
            self._use(_read_file(Path(source)))

    @property
    def is_empty(self) -> bool:
        """Whether no key was read yet."""
        return not self._keys

    def find(self, kid: str | None, algorithm: str) -> list[Any]:
        """The keys that may have signed; each is used with its own algorithm only."""
        return [
            key
            for name, made_for, key in self._keys
            if made_for == algorithm and (kid is None or name == kid)
        ]

    def has(self, signer: bytes) -> bool:
        """Whether the key with this fingerprint is one of the issuer's."""
        return signer in self._fingerprints

    async def fetch_again(self, seconds: float) -> bool:
        """Read the keys now, because one is missing, and wait up to `seconds` for it.

        False if they were just read: unknown callers must not make us ask the issuer all the time.
        """
        if self._reading is None and self._clock() - self._read_at < self._refresh_least:
            return False
        reading = self._start()
        await asyncio.wait([reading], timeout=seconds)
        return reading.done()

    async def watch(self) -> None:
        """Read the keys at intervals; runs until cancelled."""
        try:
            while True:
                await asyncio.wait([self._start()])
                await asyncio.sleep(self._refresh if self._keys else self._refresh_least)
        finally:
            if self._reading is not None:
                self._reading.cancel()

    def _start(self) -> asyncio.Task[None]:
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(self._finished)
        return self._reading

    def _finished(self, _: asyncio.Task[None]) -> None:
        self._reading = None

    async def _read(self) -> None:
        try:
            if self._is_url:
                self._use(await _fetch(self._source))
            else:
                self._use(await asyncio.to_thread(_read_file, Path(self._source)))
        except MillstreamError as error:
            _log.warning("%s; the old keys stay in use", error)
        finally:
            self._read_at = self._clock()

    def _use(self, text: bytes) -> None:
        keys = _parse(text, self._shown)
        if [_comparable(each) for each in keys] != [_comparable(each) for each in self._keys]:
            self.version += 1
        self._keys = keys
        self._fingerprints = frozenset(fingerprint(key) for _, _, key in keys)


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()[: _MAX_BYTES + 1]
    except OSError as error:
        raise SettingsError(
            f"cannot read the issuer's keys in {path}: {error.strerror}",
            remedy="set collect.jwt_jwks to a JWKS file or URL",
        ) from None


def _trust() -> ssl.SSLContext:
    """The trusted authorities. Imported late: it takes a sixth of a collector's start."""
    import httpx

    return httpx.create_ssl_context()


async def _fetch(url: str) -> bytes:
    """The content of the URL, up to a size; follows no redirect."""
    trusted = await asyncio.to_thread(_trust)
    import httpx

    try:
        async with (
            asyncio.timeout(_FETCH_SECONDS),
            httpx.AsyncClient(verify=trusted) as http,
            http.stream("GET", url, headers={"accept-encoding": "identity"}) as response,
        ):
            if response.status_code != 200:
                raise MillstreamError(
                    f"cannot read the issuer's keys from {without_secrets(url)}: it answers with "
                    f"{response.status_code}"
                )
            text = b""
            async for chunk in response.aiter_raw():  # not decompressed, which could be very large
                text += chunk
                if len(text) > _MAX_BYTES:
                    break
            return text
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise MillstreamError(
            f"cannot read the issuer's keys from {without_secrets(url)}: {reason}"
        ) from None


def _parse(text: bytes, source: str) -> list[tuple[str | None, str, Any]]:
    keys = []
    try:
        if len(text) > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
        for entry in json.loads(text)["keys"]:
            if found := _usable(entry):
                keys.append(found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise SettingsError(f"{source} is no JSON Web Key Set ({reason[:200]})") from None
    if not keys:
        raise SettingsError(
            f"{source} has no usable key",
            remedy=f"it needs a key for one of {', '.join(ALGORITHMS)}",
        )
    return keys


def _usable(entry: dict[str, Any]) -> tuple[str | None, str, Any] | None:
    """Its kid, algorithm and key, if it is a public key for signatures that we accept."""
    if entry.get("kty") not in ("RSA", "EC", "OKP"):
        return None  # also `oct`: a shared secret must not be in a public file
    if entry.get("use", "sig") != "sig" or "verify" not in entry.get("key_ops", ["verify"]):
        return None
    try:
        key = jwt.PyJWK.from_dict({name: entry[name] for name in entry if name != "d"}).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    algorithm = _algorithm_of(key)
    if algorithm is None or entry.get("alg", algorithm) not in (algorithm, "Ed25519"):
        return None
    kid = entry.get("kid")
    return (kid if isinstance(kid, str) else None), algorithm, key


def _algorithm_of(key: object) -> str | None:
    match key:
        case RSAPublicKey():
            return "RS256" if key.key_size >= _MIN_RSA_BITS else None
        case EllipticCurvePublicKey():
            return "ES256" if isinstance(key.curve, SECP256R1) else None
        case Ed25519PublicKey() | Ed448PublicKey():
            return "EdDSA"
    return None


def fingerprint(key: Any) -> bytes:
    """Identifies a public key."""
    return hashlib.sha256(_encoded(key)).digest()


def _comparable(entry: tuple[str | None, str, Any]) -> tuple[str | None, bytes]:
    return entry[0], _encoded(entry[2])


def _encoded(key: Any) -> bytes:
    encoded: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return encoded
