"""An issuer's public keys, from a file or a URL, fresh without anybody waiting for them."""

from __future__ import annotations

import asyncio
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
_MOST_BYTES = 256 * 1024
_FETCH_SECONDS = 5.0
_LEAST_RSA_BITS = 2048

_log = logging.getLogger(__name__)


class IssuerKeys:
    """The issuer's keys as they were last read; a read that fails leaves them."""

    def __init__(
        self,
        place: str,
        *,
        refresh: float,
        refresh_least: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place = place
        self._shown = without_secrets(place) if "://" in place else place
        self._is_url = "://" in place
        self._refresh = refresh
        self._refresh_least = refresh_least
        self._clock = clock
        self._keys: list[tuple[str | None, str, Any]] = []  # kid, algorithm, key
        self._read_at = -float("inf")
        self._reading: asyncio.Task[None] | None = None
        self.version = 0  # grows when other keys were read: what was verified before may be wrong
        if not self._is_url:
            self._take(_read_file(Path(place)))

    @property
    def is_empty(self) -> bool:
        """Whether no key could be read so far."""
        return not self._keys

    def find(self, kid: str | None, algorithm: str) -> list[Any]:
        """The keys that may have signed: the algorithm comes from them, never from the token."""
        return [
            key
            for name, made_for, key in self._keys
            if made_for == algorithm and (kid is None or name == kid)
        ]

    async def look_again(self, seconds: float) -> bool:
        """Read the keys earlier, since one is missing, and wait a little for it.

        False if that was done a moment ago: strangers must not make us ask the issuer all the time.
        """
        if self._reading is None and self._clock() - self._read_at < self._refresh_least:
            return False
        reading = self._start()
        await asyncio.wait([reading], timeout=seconds)
        return reading.done()

    async def watch(self) -> None:
        """Keep the keys fresh; runs until it is cancelled."""
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
                self._take(await _fetch(self._place))
            else:
                self._take(await asyncio.to_thread(_read_file, Path(self._place)))
        except MillstreamError as error:
            _log.warning("%s; those read before stay in use", error)
        finally:
            self._read_at = self._clock()

    def _take(self, text: bytes) -> None:
        keys = _parse(text, self._shown)
        if [_comparable(each) for each in keys] != [_comparable(each) for each in self._keys]:
            self.version += 1
        self._keys = keys


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()[: _MOST_BYTES + 1]
    except OSError as error:
        raise SettingsError(
            f"cannot read the issuer's keys in {path}: {error.strerror}",
            remedy="set collect.jwt_jwks to a JWKS file or URL",
        ) from None


def _trust() -> ssl.SSLContext:
    """Some hundred certificates; with an import that would be a sixth of any collector's start."""
    import httpx

    return httpx.create_ssl_context()


async def _fetch(url: str) -> bytes:
    """What the URL holds; no redirect is followed, and the size is bounded while it comes."""
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
            async for chunk in response.aiter_raw():  # small on the wire may be large unpacked
                text += chunk
                if len(text) > _MOST_BYTES:
                    break
            return text
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise MillstreamError(
            f"cannot read the issuer's keys from {without_secrets(url)}: {reason}"
        ) from None


def _parse(text: bytes, place: str) -> list[tuple[str | None, str, Any]]:
    keys = []
    try:
        if len(text) > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES} bytes")
        for entry in json.loads(text)["keys"]:
            if found := _usable(entry):
                keys.append(found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise SettingsError(f"{place} is no JSON Web Key Set ({reason[:200]})") from None
    if not keys:
        raise SettingsError(
            f"{place} has no key that we verify with", remedy=f"it needs one for {ALGORITHMS}"
        )
    return keys


def _usable(entry: dict[str, Any]) -> tuple[str | None, str, Any] | None:
    """The key, if it is a public one for signatures that we take, and what it is for."""
    if entry.get("kty") not in ("RSA", "EC", "OKP"):
        return None  # `oct` among them: a shared secret is none once others can read it
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
            return "RS256" if key.key_size >= _LEAST_RSA_BITS else None
        case EllipticCurvePublicKey():
            return "ES256" if isinstance(key.curve, SECP256R1) else None
        case Ed25519PublicKey() | Ed448PublicKey():
            return "EdDSA"
    return None


def _comparable(entry: tuple[str | None, str, Any]) -> tuple[str | None, bytes]:
    return entry[0], entry[2].public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
