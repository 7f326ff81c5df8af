"""Errors as HTTP responses: problem+json (RFC 9457)."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec

from millstream.errors import MillstreamError

CONTENT_TYPE = b"application/problem+json"
CLOSE = (b"connection", b"close")
RETRY = (b"retry-after", b"1")


class Problem(MillstreamError):
    """An error with an HTTP status; `members` are added to the response's JSON."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        remedy: str = "",
        headers: Iterable[tuple[bytes, bytes]] = (),
        **members: Any,
    ) -> None:
        super().__init__(detail, remedy=remedy)
        self.status = status
        self.headers = list(headers)
        self._members = members

    @property
    def title(self) -> str:
        """The status in words."""
        return HTTPStatus(self.status).phrase

    @property
    def content(self) -> dict[str, Any]:
        """The JSON of the response."""
        return {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": str(self),
            **self._members,
        }

    def encode(self, more: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
        """The whole response, of a connection that is closed after it, with `more` headers."""
        body = msgspec.json.encode(self.content)
        headers = [
            *more,
            (b"content-type", CONTENT_TYPE),
            (b"content-length", str(len(body)).encode()),
            *[each for each in self.headers if each != CLOSE],
            CLOSE,
        ]
        phrase = HTTPStatus(self.status).phrase.encode()
        lines = [b"HTTP/1.1 %d %b\r\n" % (self.status, phrase)]
        return b"".join([*lines, *(b"%b: %b\r\n" % each for each in headers), b"\r\n", body])
