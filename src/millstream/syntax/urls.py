"""URLs that may hold secrets."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit


def without_secrets(url: str) -> str:
    """A URL without what may be secret in it: user, password and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
