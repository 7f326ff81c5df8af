"""What a pipeline says about where a stream comes from; `collect.sources` does the reading."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit


@dataclass(frozen=True, slots=True)
class WebSocketSource:
    """Each text message of a WebSocket is one event (or an array, or lines of events)."""

    url: str
    headers: dict[str, str] = field(default_factory=dict, hash=False)
    kind = "websocket"

    @property
    def address(self) -> str:
        """The URL without what may be secret in it: user, password and query."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


Source = WebSocketSource
