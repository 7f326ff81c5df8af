"""Lines of events out of bytes as they come, many to an offer."""

from __future__ import annotations

from millstream.connectors.reading.batcher import LINES, Parcel
from millstream.connectors.reading.frame_splitter import Frames
from millstream.connectors.settings import SourceSettings

_CHUNK = 64 << 10


def chunk_size(settings: SourceSettings) -> int:
    """How much to read at once, so that all the lines in it fit into one offer."""
    # A line that is not empty has two bytes at least.
    return max(1, min(_CHUNK, settings.max_body // 2, 2 * settings.max_events - 1))


def longest_line(settings: SourceSettings) -> int:
    """The longest line that is taken: it must fit into one offer with the next chunk."""
    return min(settings.max_line, settings.max_body // 2)


class Lines:
    """Cuts chunks of at most `chunk_size` into offers of whole lines."""

    def __init__(self, settings: SourceSettings) -> None:
        self._frames = Frames(b"\n", longest_line(settings))

    def feed(self, chunk: bytes) -> list[Parcel]:
        """The lines that are whole now, as one parcel if there are any."""
        return _parcels(self._frames.feed(chunk))

    def end(self) -> list[Parcel]:
        """The last line, when the peer has ended properly without a line's end."""
        return _parcels(self._frames.rest())

    def skipped(self) -> int:
        """How many lines were too long since the last time."""
        skipped, self._frames.skipped = self._frames.skipped, 0
        return skipped


def _parcels(lines: bytes) -> list[Parcel]:
    if not lines or lines.isspace():
        return []
    return [Parcel(lines, lines.count(b"\n") + (not lines.endswith(b"\n")), LINES)]
