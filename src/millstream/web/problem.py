"""Errors as HTTP answers: problem+json (RFC 9457)."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from millstream.errors import MillstreamError

CONTENT_TYPE = b"application/problem+json"
CLOSE = (b"connection", b"close")
RETRY = (b"retry-after", b"1")


class Problem(MillstreamError):
    """A request that gets an error as its answer; `members` are added to its content."""

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
    def content(self) -> dict[str, Any]:
        """What the answer's JSON says."""
        return {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": str(self),
            **self._members,
        }
