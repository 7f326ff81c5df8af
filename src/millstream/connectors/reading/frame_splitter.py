"""Splits a stream of bytes at its separators; memory is bounded by the longest frame."""

from __future__ import annotations


class FrameSplitter:
    """Returns whole frames, many at a time: the bytes up to the last separator.

    A frame that grows longer than `longest` before it ends is skipped, and counted. (A frame that
    ends within one chunk may be longer, by the length of that chunk.)
    """

    def __init__(self, separator: bytes, longest: int) -> None:
        self.skipped = 0
        self._separator = separator
        self._longest = longest
        self._buffer = bytearray()  # starts with a frame, and holds no separator
        self._skipping = False  # the buffer is the middle of a frame that is too long

    def feed(self, chunk: bytes) -> bytes:
        """The frames that are whole now, each with its separator; empty if none is."""
        buffer, separator = self._buffer, self._separator
        seen = max(0, len(buffer) - len(separator) + 1)
        buffer += chunk
        end = buffer.rfind(separator, seen)
        whole = b""
        if end >= 0:
            end += len(separator)
            first = buffer.find(separator, seen) + len(separator) if self._skipping else 0
            whole = bytes(memoryview(buffer)[first:end])
            del buffer[:end]
            self._skipping = False
        if len(buffer) > self._longest:
            self.skipped += not self._skipping
            self._skipping = True
            del buffer[: len(buffer) - len(separator) + 1]
        return whole

    def rest(self) -> bytes:
        """The bytes after the last separator; empty if they were too long."""
        return b"" if self._skipping else bytes(self._buffer)
