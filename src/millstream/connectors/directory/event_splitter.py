"""Splits the text of a file into events: lines, rows of CSV, or JSON values."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"
_WHITE = b" \t\r\n"


class UnreadableFile(Exception):
    """A file does not have the expected format; the text says why."""


@dataclass(frozen=True, slots=True)
class SplitEvents:
    """Complete events, each with its line end, and how many bytes of the text they used."""

    body: bytes
    events: int
    used: int


class EventSplitter(ABC):
    """Splits one file from start to end. Each text begins where the last split ended."""

    content_type = "application/x-ndjson"
    header = b""

    def __init__(self, longest: int, most: int) -> None:
        self._longest = longest
        self._most = most  # events per split

    def skip_head(self, head: bytes) -> int | None:
        """The length of what precedes the first event; None if more text is needed to know."""
        if len(head) < len(_BOM) and _BOM.startswith(head):
            return None
        return len(_BOM) if head.startswith(_BOM) else 0

    @abstractmethod
    def split(self, text: bytes) -> SplitEvents | None:
        """The events that end in the text, at most `most`; None if none ends."""

    @abstractmethod
    def split_last(self, text: bytes) -> SplitEvents:
        """The rest of the text, at the end of the file."""

    def _check_length(self, text: bytes) -> None:
        if len(text) > self._longest:
            raise UnreadableFile(f"it has an event of more than {self._longest} bytes")


class NdjsonSplitter(EventSplitter):
    """One event per line."""

    def split(self, text: bytes) -> SplitEvents | None:
        end = text.rfind(b"\n", 0, self._longest) + 1
        if not end:
            self._check_length(text)
            return None
        events = text.count(b"\n", 0, end)
        if events > self._most:
            events, end = self._most, _nth_line_end(text, self._most)
        return SplitEvents(text[:end], events, end)

    def split_last(self, text: bytes) -> SplitEvents:
        self._check_length(text)
        if not text.strip(_WHITE):
            return SplitEvents(b"", 0, len(text))
        return SplitEvents(text + b"\n", 1, len(text))


class CsvSplitter(NdjsonSplitter):
    """A row may span several lines, in quotes. The first row is the header."""

    content_type = "text/csv"

    def skip_head(self, head: bytes) -> int | None:
        begin = super().skip_head(head)
        while begin is not None:
            end = self._row_end(head, begin)
            if not end:
                self._check_length(head)
                return None
            self.header = head[begin:end]
            if self.header.strip(_WHITE):
                self._check_utf8(self.header)
                self._longest -= len(self.header)
                return end
            begin = end  # an empty line
        return None

    def split(self, text: bytes) -> SplitEvents | None:
        found = self._split_rows(text) if b'"' in text else super().split(text)
        if found is not None:
            self._check_utf8(found.body)
        return found

    def split_last(self, text: bytes) -> SplitEvents:
        if text and not self._row_end(text + b"\n", 0):
            raise UnreadableFile("it ends inside quotes")
        self._check_utf8(text)
        return super().split_last(text)

    def _split_rows(self, text: bytes) -> SplitEvents | None:
        end = events = 0
        while events < self._most and (row_end := self._row_end(text, end)):
            if row_end > self._longest and events:
                break
            end, events = row_end, events + 1
        if not events or end > self._longest:
            self._check_length(text)
            return None
        return SplitEvents(text[:end], events, end)

    def _row_end(self, text: bytes, begin: int) -> int:
        """The end of the row that starts at `begin`; 0 if it does not end in the text."""
        at: int | None = begin
        if text[begin : begin + 1] == b'"':
            at = _after_quotes(text, begin + 1)
        while at is not None and (newline := text.find(b"\n", at)) >= 0:
            quote = text.find(b',"', at, newline)
            if quote < 0:
                return newline + 1
            at = _after_quotes(text, quote + 2)
        return 0

    def _check_utf8(self, text: bytes) -> None:
        # One such byte would reject the whole message; here it costs the rest of one file.
        try:
            text.decode()
        except UnicodeDecodeError as error:
            found = error.object[error.start]
            raise UnreadableFile(f"it is not UTF-8 text: it has the byte {found:#04x}") from None


class JsonSplitter(EventSplitter):
    """Consecutive objects, or the elements of one array; a value may span several lines."""

    # A string (the group is empty if it does not end), or a structural character.
    _TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)|[\[\]{},]', re.DOTALL)

    def __init__(self, longest: int, most: int) -> None:
        super().__init__(longest, most)
        self._array = False  # whether the file is one array
        self._ended = False  # whether that array has ended
        self._depth = 0
        self._scanned = 0  # how much of the text was scanned before

    def skip_head(self, head: bytes) -> int | None:
        begin = super().skip_head(head)
        if begin is None:
            return None
        content = head[begin:].lstrip(_WHITE)
        if not content:
            self._check_length(head)
            return None
        if content[:1] == b"[":
            self._array, self._depth = True, 1
            return len(head) - len(content) + 1
        return begin

    def split(self, text: bytes) -> SplitEvents | None:
        found: list[bytes] = []
        used, at = 0, self._scanned
        while len(found) < self._most and (match := self._TOKEN.search(text, at)):
            token, at = match[0], match.end()
            if token[:1] == b'"':
                if not match[1]:
                    at = match.start()  # the string continues in the next text
                    break
            elif token in b"{[":
                self._depth += 1
            elif token == b",":
                if self._depth == 1 and self._array:
                    _add(found, text[used : match.start()])
                    used = at
            elif self._depth == 1 and self._array and _add(found, text[used : match.start()]):
                # Keep the array's end for the next split: a reader that resumes here needs it.
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
            self._check_length(text)
            return None
        return SplitEvents(b"".join(found), len(found), used)

    def split_last(self, text: bytes) -> SplitEvents:
        rest = text.strip(_WHITE + b",")
        if self._depth or (self._array and (rest or not self._ended)):
            raise UnreadableFile("it is not JSON: it ends in the middle of a value")
        found: list[bytes] = []
        _add(found, rest)
        return SplitEvents(b"".join(found), len(found), len(text))


def _add(found: list[bytes], value: bytes) -> bool:
    """Add a value as one line; returns whether there is one."""
    # In JSON, a line end is never inside a string: a space means the same.
    value = value.strip(_WHITE + b",").replace(b"\n", b" ").replace(b"\r", b" ")
    if value:
        found.append(value + b"\n")
    return bool(value)


def _nth_line_end(text: bytes, number: int) -> int:
    end = 0
    for _ in range(number):
        end = text.find(b"\n", end) + 1
    return end


def _after_quotes(text: bytes, at: int) -> int | None:
    """The end of the quoted cell that `at` is in; None if it does not end."""
    while (quote := text.find(b'"', at)) >= 0:
        if text[quote + 1 : quote + 2] != b'"':
            return quote + 1
        at = quote + 2  # two quotes stand for one
    return None
