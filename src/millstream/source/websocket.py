"""A WebSocket that someone else serves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from millstream.source.base import Source, url_problem, without_secrets


@dataclass(frozen=True, slots=True)
class WebSocketSource(Source):
    """Each text message of a WebSocket is one event (or an array, or lines of events)."""

    kind: ClassVar[str] = "websocket"
    schemes: ClassVar[tuple[str, ...]] = ("ws", "wss")
    example: ClassVar[str] = "WebSocketSource('ws://host/path')"

    url: str
    headers: dict[str, str] = field(default_factory=dict, hash=False)

    @property
    def address(self) -> str:
        return without_secrets(self.url)

    def problem(self) -> str | None:
        return url_problem(self.url, self.schemes, "a WebSocket")
