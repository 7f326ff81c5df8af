"""Finds where events end in text: at lines, at rows of CSV, at values of JSON."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"
_WHITE = b" \t\r\n"


class UnreadableFile(Exception):
    """A file is not what it seems; the text says how."""


@dataclass(frozen=True, slots=True)
class SplitEvents:
    """Whole events, each with its line end, and how much of the text they took."""

    body: bytes
    events: int
    used: int


class EventSplitter(ABC):
    """Cuts the text of one file, from front to back. Texts begin where the last one was cut."""

    content_type = "application/x-ndjson"
    header = b""

    def __init__(self, longest: int, most: int) -> None:
        self._longest = longest
        self._most = most  # events at a time

    def begin(self, head: bytes) -> int | None:
        """How long what comes before the first event is; None if that cannot be told yet."""
        if len(head) < len(_BOM) and _BOM.startswith(head):
            return None
        return len(_BOM) if head.startswith(_BOM) else 0

    @abstractmethod
    def cut(self, text: bytes) -> SplitEvents | None:
        """The events that end in the text; None if none does. At most `most`."""

    @abstractmethod
    def last(self, text: bytes) -> SplitEvents:
        """What is left when the file is at its end."""

    def _none_ends(self, text: bytes) -> None:
        if len(text) > self._longest:
            raise UnreadableFile(f"it has an event of more than {self._longest} bytes")


class NdjsonSplitter(EventSplitter):
    """One event a line."""

    def cut(self, text: bytes) -> SplitEvents | None:
        end = text.rfind(b"\n", 0, self._longest) + 1
        if not end:
            self._none_ends(text)
            return None
        events = text.count(b"\n", 0, end)
        if events > self._most:
            events, end = self._most, _nth_line_end(text, self._most)
        return SplitEvents(text[:end], events, end)

    def last(self, text: bytes) -> SplitEvents:
        self._none_ends(text)
        return (
            SplitEvents(text + b"\n", 1, len(text))
            if text.strip(_WHITE)
            else SplitEvents(b"", 0, len(text))
        )


class CsvSplitter(NdjsonSplitter):
    """A row may go over several lines, in quotes. The first is the header, and no event."""

    content_type = "text/csv"

    def begin(self, head: bytes) -> int | None:
        begin = super().begin(head)
        while begin is not None:
            end = self._row_end(head, begin)
            if not end:
                self._none_ends(head)
                return None
            self.header = head[begin:end]
            if self.header.strip(_WHITE):
                self._utf8(self.header)
                self._longest -= len(self.header)
                return end
            begin = end  # an empty line
        return None

    def cut(self, text: bytes) -> SplitEvents | None:
        found = self._cut_rows(text) if b'"' in text else super().cut(text)
        if found is not None:
            self._utf8(found.body)
        return found

    def last(self, text: bytes) -> SplitEvents:
        if text and not self._row_end(text + b"\n", 0):
            raise UnreadableFile("it ends inside quotes")
        self._utf8(text)
        return super().last(text)

    def _cut_rows(self, text: bytes) -> SplitEvents | None:
        end = events = 0
        while events < self._most and (row_end := self._row_end(text, end)):
            if row_end > self._longest and events:
                break
            end, events = row_end, events + 1
        if not events or end > self._longest:
            self._none_ends(text)
            return None
        return SplitEvents(text[:end], events, end)

    def _row_end(self, text: bytes, begin: int) -> int:
        """Where the row ends that begins there; 0 if it does not end in the text."""
        at: int | None = begin
        if text[begin : begin + 1] == b'"':
            at = _behind_quotes(text, begin + 1)
        while at is not None and (newline := text.find(b"\n", at)) >= 0:
            quote = text.find(b',"', at, newline)
            if quote < 0:
                return newline + 1
            at = _behind_quotes(text, quote + 2)
        return 0

    def _utf8(self, text: bytes) -> None:
        # A body of CSV is refused as a whole for one such byte; here it costs the rest of one file.
        try:
            text.decode()
        except UnicodeDecodeError as error:
            found = error.object[error.start]
            raise UnreadableFile(f"it is not UTF-8 text: it has the byte {found:#04x}") from None


class JsonSplitter(EventSplitter):
    """Objects one after another, or the elements of one array; over as many lines as they like."""

    # A string (the group is empty if it does not end), or what structure is made of.
    _TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)|[\[\]{},]', re.DOTALL)

    def __init__(self, longest: int, most: int) -> None:
        super().__init__(longest, most)
        self._array = False  # whether the file is one array
        self._ended = False  # the array, that is
        self._depth = 0
        self._scanned = 0  # how much of the text was looked at before

    def begin(self, head: bytes) -> int | None:
        begin = super().begin(head)
        if begin is None:
            return None
        content = head[begin:].lstrip(_WHITE)
        if not content:
            self._none_ends(head)
            return None
        if content[:1] == b"[":
            self._array, self._depth = True, 1
            return len(head) - len(content) + 1
        return begin

    def cut(self, text: bytes) -> SplitEvents | None:
        found: list[bytes] = []
        used, at = 0, self._scanned
        while len(found) < self._most and (match := self._TOKEN.search(text, at)):
            token, at = match[0], match.end()
            if token[:1] == b'"':
                if not match[1]:
                    at = match.start()  # the string goes on in the next text
                    break
            elif token in b"{[":
                self._depth += 1
            elif token == b",":
                if self._depth == 1 and self._array:
                    _add(found, text[used : match.start()])
                    used = at
            elif self._depth == 1 and self._array and _add(found, text[used : match.start()]):
                # The array's end stays for the next time: whoever goes on here must find it.
                used = at = match.start()
                break
            else:
                self._depth -= 1
                if self._depth < 0:
                    raise UnreadableFile(f"it is not JSON: a {token.decode()} too many")
                if self._depth == 0:
                    _add(found, text[used : match.start() if self._array else at])
                    used, self._ended = at, self._array
        else:
            at = len(text) if len(found) < self._most else at
        self._scanned = at - used
        if not used:
            self._none_ends(text)
            return None
        return SplitEvents(b"".join(found), len(found), used)

    def last(self, text: bytes) -> SplitEvents:
        rest = text.strip(_WHITE + b",")
        if self._depth or (self._array and (rest or not self._ended)):
            raise UnreadableFile("it is not JSON: it ends in the middle of a value")
        found: list[bytes] = []
        _add(found, rest)
        return SplitEvents(b"".join(found), len(found), len(text))


def _add(found: list[bytes], value: bytes) -> bool:
    """Whether there is a value, which is added as one line."""
    # In JSON, a line end is never inside a string: a blank means the same.
    value = value.strip(_WHITE + b",").replace(b"\n", b" ").replace(b"\r", b" ")
    if value:
        found.append(value + b"\n")
    return bool(value)


def _nth_line_end(text: bytes, number: int) -> int:
    end = 0
    for _ in range(number):
        end = text.find(b"\n", end) + 1
    return end


def _behind_quotes(text: bytes, at: int) -> int | None:
    """Where a quoted cell ends, of which `at` is inside; None if it does not."""
    while (quote := text.find(b'"', at)) >= 0:
        if text[quote + 1 : quote + 2] != b'"':
            return quote + 1
        at = quote + 2  # two stand for one
    return None
