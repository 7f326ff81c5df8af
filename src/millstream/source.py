"""What a pipeline says about where a stream comes from; `millstream.collect.sources` does the reading."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WebSocketSource:
    """Each text message of a WebSocket is one event (or an array, or lines of events)."""

    url: str
    headers: dict[str, str] = field(default_factory=dict, hash=False)
    kind = "websocket"


Source = WebSocketSource
