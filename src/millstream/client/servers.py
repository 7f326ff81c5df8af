"""Several addresses of one system, and the one that answers."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from millstream.errors import NotReachable, QueryError, RequestRefused, SettingsError

# The server is there but cannot answer now; another one may.
_TRY_ANOTHER = frozenset({502, 503, 504})


class Servers:
    """Base addresses in the caller's order; stays with one as long as it answers."""

    def __init__(self, urls: tuple[str, ...]) -> None:
        if not urls:
            raise SettingsError("no server to talk to", remedy="give an address: http://host:port")
        self._urls = [_checked(url) for url in urls]
        self._at = 0

    def __len__(self) -> int:
        return len(self._urls)

    def __str__(self) -> str:
        return ", ".join(self._urls)

    @property
    def current(self) -> str:
        return self._urls[self._at]

    def move_on(self) -> None:
        """Turn to the next address, as the current one did not answer."""
        self._at = (self._at + 1) % len(self._urls)

    async def ask(
        self, http: httpx.AsyncClient, method: str, path: str, **request: Any
    ) -> httpx.Response:
        """The first server's answer that is one. Only for calls that are safe to repeat.

        NotReachable if none answers, RequestRefused or QueryError if one says no.
        """
        reason = ""
        for _ in range(len(self)):
            url = self.current
            try:
                response = await http.request(method, url + path, **request)
            except httpx.TransportError as error:
                reason = f"{url}: {str(error) or type(error).__name__}"
            else:
                if response.status_code not in _TRY_ANOTHER:
                    return _accepted(response)
                reason = f"{url}: {problem(response)}"
            self.move_on()
        raise NotReachable(
            f"cannot {method} {path}: {reason}", remedy=f"check that a server runs on {self}"
        )


def problem(response: httpx.Response) -> str:
    """What a server says is wrong, in its own words."""
    try:
        said = msgspec.json.decode(response.content)
        return str(said.get("detail") or said["title"])
    except (msgspec.DecodeError, UnicodeDecodeError, AttributeError, KeyError):
        return f"{response.status_code} {response.reason_phrase}"


def _accepted(response: httpx.Response) -> httpx.Response:
    if response.status_code == 400:
        raise QueryError(problem(response))
    if response.is_error:
        raise RequestRefused(problem(response), status=response.status_code)
    return response


def _checked(url: str) -> str:
    if not _is_address(url):
        raise SettingsError(
            f"{url!r} is not a server's address", remedy="write it as http://host:port"
        )
    return url.rstrip("/")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        httpx.URL(url)  # the one that will be used has rules of its own
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except (ValueError, httpx.InvalidURL):  # half an IPv6 address, a port that is no number
        return False
