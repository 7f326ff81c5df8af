"""Splits bytes into lines, one event each, with many lines in a batch."""

from __future__ import annotations

from millstream.connectors.reading.batcher import LINES, MessageBatch
from millstream.connectors.reading.frame_splitter import FrameSplitter
from millstream.connectors.settings import SourceSettings

_CHUNK = 64 << 10


def chunk_size(settings: SourceSettings) -> int:
    """How many bytes to read at once, so that all their lines fit into one batch."""
    # A non-empty line has at least two bytes.
    return max(1, min(_CHUNK, settings.max_body // 2, 2 * settings.max_events - 1))


def longest_line(settings: SourceSettings) -> int:
    """The longest line that is accepted: it must fit into one batch with the next chunk."""
    return min(settings.max_line, settings.max_body // 2)


class LineSplitter:
    """Splits chunks of at most `chunk_size` into batches of whole lines."""

    def __init__(self, settings: SourceSettings) -> None:
        self._frames = FrameSplitter(b"\n", longest_line(settings))

    def feed(self, chunk: bytes) -> list[MessageBatch]:
        """The lines that are complete now, as one batch if there are any."""
        return _batches(self._frames.feed(chunk))

    def end(self) -> list[MessageBatch]:
        """The last line, if the peer ended properly without a newline."""
        return _batches(self._frames.rest())

    def skipped(self) -> int:
        """How many lines were too long since the last call."""
        skipped, self._frames.skipped = self._frames.skipped, 0
        return skipped


def _batches(lines: bytes) -> list[MessageBatch]:
    if not lines or lines.isspace():
        return []
    return [MessageBatch(lines, lines.count(b"\n") + (not lines.endswith(b"\n")), LINES)]
