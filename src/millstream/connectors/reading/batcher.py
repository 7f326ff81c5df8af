"""Groups messages that arrived together: a batch costs little more than one message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.connectors.settings import SourceSettings

JSON = "application/json"
LINES = "application/x-ndjson"
_MOST_LINES = 1000
_MOST_TOGETHER = (
    1 << 20
)  # bytes; a journal that has room for each message must have room for the batch


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """The body of one `offer`, and how many messages of the peer it holds."""

    body: bytes
    messages: int = 1
    content_type: str = JSON
    bookmark: bytes | None = None
    attributes: Mapping[str, str] | None = None


class Batcher:
    """Groups one-line messages, in their order; any other message is a batch by itself."""

    def __init__(self, settings: SourceSettings) -> None:
        self.oversized = 0  # messages that were too large, and are dropped
        self._most_bytes = settings.max_body
        self._most_together = min(_MOST_TOGETHER, settings.max_body)
        self._most_lines = min(_MOST_LINES, settings.max_events)
        self._batches: list[MessageBatch] = []
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
        """Add a message. An empty or too large one is dropped, but its bookmark counts."""
        if len(message) > self._most_bytes:
            self.oversized += 1
        elif not message or message.isspace():
            pass
        elif (
            attributes is None
            and content_type == JSON
            # A line of a batch is one event: neither an array nor JSON over several lines.
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
            self._batches.append(MessageBatch(message, 1, content_type, bookmark, attributes))
            return
        if bookmark is not None:
            self._bookmark = bookmark

    def drain(self) -> list[MessageBatch]:
        """Remove and return what was added since the last call, in order."""
        self._close()
        batches, self._batches = self._batches, []
        return batches

    def _close(self) -> None:
        if self._lines:
            body, content_type = b"\n".join(self._lines), LINES if len(self._lines) > 1 else JSON
            self._batches.append(MessageBatch(body, len(self._lines), content_type, self._bookmark))
            self._lines, self._bytes, self._bookmark = [], 0, None
