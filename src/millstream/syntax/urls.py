"""URLs that may hold secrets."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit


def without_secrets(url: str) -> str:
    """A URL without its user, password and query, which may be secret."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
