"""A client's key, and the authorities that it trusts.

Neither is ever part of a message: an error may name the file, but not its content.
"""

from __future__ import annotations

import inspect
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from millstream.errors import SettingsError

Key = str | Callable[[], str | Awaitable[str]]
"""A key or token, or a function that returns the current token."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """`key` is an API key or a token, or a function that returns one; `ca` a file (PEM) to trust.

    `certificate` is the server's own certificate (PEM), if it is known: only that one is accepted
    then, whatever name it has.
    """

    key: Key = field(default="", repr=False)
    ca: str = ""
    certificate: str = ""

    def options(self) -> dict[str, Any]:
        """Arguments for an httpx client; SettingsError if they cannot be used."""
        options: dict[str, Any] = {"trust_env": False}
        if self.can_refresh:
            options["auth"] = _CurrentToken(self)
        else:
            options["headers"] = self.fixed_headers()
        if (context := self.ssl_context()) is not None:
            options["verify"] = context
        return options

    @property
    def can_refresh(self) -> bool:
        """Whether a token that expires can be replaced."""
        return callable(self.key)

    async def token(self) -> str:
        """The key or token to use now."""
        if not callable(self.key):
            return self.key
        found = self.key()
        return await found if inspect.isawaitable(found) else found

    def fixed_headers(self) -> dict[str, str]:
        """The headers of every request, if the key does not change; SettingsError as `headers`."""
        return {} if callable(self.key) else _headers(self.key)

    async def headers(self) -> dict[str, str]:
        """The headers of a request; SettingsError if the key cannot be one."""
        return _headers(await self.token())

    def ssl_context(self) -> ssl.SSLContext | None:
        """What verifies the server; None: as usual."""
        if self.ca:
            return ssl_context(self.ca)
        if self.certificate:
            context = ssl_context(self.certificate)
            context.check_hostname = False  # it is this very certificate
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            return context
        return None


class _CurrentToken(httpx.Auth):
    """Sends the current token, and asks once more for one if it is refused."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def async_auth_flow(
        self, request: httpx.Request
    ) -> AsyncGenerator[httpx.Request, httpx.Response]:
        request.headers.update(await self._credentials.headers())
        response = yield request
        if response.status_code == httpx.codes.UNAUTHORIZED:
            request.headers.update(await self._credentials.headers())
            yield request

    def sync_auth_flow(
        self, request: httpx.Request
    ) -> Generator[httpx.Request, httpx.Response, None]:
        raise SettingsError("a function for the key works with asynchronous clients only")


def _headers(key: str) -> dict[str, str]:
    if not key:
        return {}
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise SettingsError(
            "the key is not one line of printable characters",
            remedy="give it as `millstream keys create` printed it",
        )
    return {"authorization": f"Bearer {key}"}


def ssl_context(ca: str) -> ssl.SSLContext:
    """A context that trusts the authorities in a file, or the usual ones if it is empty."""
    try:
        return ssl.create_default_context(cafile=ca or None)
    except OSError as error:
        raise SettingsError(
            f"cannot use the certificates in {ca}: {error.strerror or 'not PEM'}",
            remedy="give a file of certificates in PEM",
        ) from None


def read_key(file: Path) -> str:
    """Read a key from a file."""
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingsError(
            f"cannot read the key in {file}: {why}", remedy="give a file with nothing but the key"
        ) from None
