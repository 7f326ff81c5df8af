"""Description of a WebSocket source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from millstream.connectors.source_description import SourceDescription, url_problem
from millstream.connectors.source_options import headers_problem, pairs


@dataclass(frozen=True, slots=True)
class WebSocketSource(SourceDescription):
    """Each text message of a WebSocket is one event (or an array, or lines of events)."""

    kind: ClassVar[str] = "websocket"
    reader: ClassVar[str] = "WebSocketReader"
    schemes: ClassVar[tuple[str, ...]] = ("ws", "wss")
    example: ClassVar[str] = "WebSocketSource('ws://host/path')"
    sql_example: ClassVar[str] = "'ws://host/path'"

    url: str = field(repr=False)
    headers: dict[str, str] = field(default_factory=dict, hash=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "headers", pairs(self.headers, ":"))

    def problem(self) -> str | None:
        return url_problem(self.url, self.schemes, "a WebSocket") or headers_problem(self.headers)
