"""The addresses of one system's servers, and the one that answers."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from millstream.errors import NotReachable, QueryError, RequestRefused, SettingsError

# The server cannot answer now; another one may.
_TRY_ANOTHER = frozenset({502, 503, 504})


class Servers:
    """Base addresses in the given order; one is used as long as it answers."""

    def __init__(self, urls: tuple[str, ...]) -> None:
        if not urls:
            raise SettingsError("there is no server's address", remedy="give one: http://host:port")
        self._urls = [_check_address(url) for url in urls]
        self._at = 0

    def __len__(self) -> int:
        return len(self._urls)

    def __str__(self) -> str:
        return ", ".join(self._urls)

    @property
    def current(self) -> str:
        return self._urls[self._at]

    def use_next(self) -> None:
        """Use the next address, because the current one did not answer."""
        self._at = (self._at + 1) % len(self._urls)

    async def request(
        self, http: httpx.AsyncClient, method: str, path: str, **options: Any
    ) -> httpx.Response:
        """The response of the first server that answers. Only for calls that are safe to repeat.

        NotReachable if no server answers; RequestRefused or QueryError for an error response.
        """
        reason = ""
        for _ in range(len(self)):
            url = self.current
            try:
                response = await http.request(method, url + path, **options)
            except httpx.TransportError as error:
                reason = f"{url}: {str(error) or type(error).__name__}"
            else:
                if response.status_code not in _TRY_ANOTHER:
                    return _raise_for_status(response)
                reason = f"{url}: {problem(response)}"
            self.use_next()
        raise NotReachable(
            f"cannot {method} {path}: {reason}", remedy=f"check that a server runs on {self}"
        )


def problem(response: httpx.Response) -> str:
    """The error in a server's response, in its own words."""
    try:
        content = msgspec.json.decode(response.content)
        return str(content.get("detail") or content["title"])
    except (msgspec.DecodeError, UnicodeDecodeError, AttributeError, KeyError):
        return f"{response.status_code} {response.reason_phrase}"


def _raise_for_status(response: httpx.Response) -> httpx.Response:
    if response.status_code == 400:
        raise QueryError(problem(response))
    if response.is_error:
        raise RequestRefused(problem(response), status=response.status_code)
    return response


def _check_address(url: str) -> str:
    if not _is_address(url):
        raise SettingsError(
            f"{url!r} is not a server's address", remedy="write it as http://host:port"
        )
    return url.rstrip("/")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        httpx.URL(url)  # httpx has rules of its own
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except (ValueError, httpx.InvalidURL):  # such as half an IPv6 address
        return False
