"""Puts messages together that arrived together, so that many cost little more than one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.connectors.settings import SourceSettings

JSON = "application/json"
LINES = "application/x-ndjson"
_MOST_LINES = 1000
_MOST_TOGETHER = 1 << 20  # bytes: a journal with room for each of them must have it for all


@dataclass(frozen=True, slots=True)
class Parcel:
    """What is offered to an output at once, and how many messages of the peer it is."""

    body: bytes
    messages: int = 1
    content_type: str = JSON
    bookmark: bytes | None = None
    attributes: Mapping[str, str] | None = None


class Bundle:
    """Messages in their order: those that are one line each together, any other by itself."""

    def __init__(self, settings: SourceSettings) -> None:
        self.oversized = 0  # messages that were too large to take
        self._most_bytes = settings.max_body
        self._most_together = min(_MOST_TOGETHER, settings.max_body)
        self._most_lines = min(_MOST_LINES, settings.max_events)
        self._parcels: list[Parcel] = []
        self._lines: list[bytes] = []
        self._bytes = 0
        self._bookmark: bytes | None = None  # after the last of the lines

    def add(
        self,
        message: bytes,
        *,
        bookmark: bytes | None = None,
        attributes: Mapping[str, str] | None = None,
        content_type: str = JSON,
    ) -> None:
        """One message more. Only a bookmark counts of one that is empty or too large."""
        if len(message) > self._most_bytes:
            self.oversized += 1
        elif not message or message.isspace():
            pass
        elif (
            attributes is None
            and content_type == JSON
            # Lines hold one event each: an array, and what is printed over several, stands alone.
            and message[:1] != b"["
            and b"\n" not in message
        ):
            is_full = len(self._lines) >= self._most_lines
            if is_full or self._bytes + len(message) >= self._most_together:
                self._close()
            self._lines.append(message)
            self._bytes += len(message) + 1
        else:
            self._close()
            self._parcels.append(Parcel(message, 1, content_type, bookmark, attributes))
            return
        if bookmark is not None:
            self._bookmark = bookmark

    def take(self) -> list[Parcel]:
        """What was added since the last time, in its order."""
        self._close()
        parcels, self._parcels = self._parcels, []
        return parcels

    def _close(self) -> None:
        if self._lines:
            body, content_type = b"\n".join(self._lines), LINES if len(self._lines) > 1 else JSON
            self._parcels.append(Parcel(body, len(self._lines), content_type, self._bookmark))
            self._lines, self._bytes, self._bookmark = [], 0, None
