"""Everything that Millstream raises on purpose.

MillstreamError
├── PipelineError      the user's pipeline file is wrong; carries file and line
│   └── PipelineErrors several such mistakes at once
├── SettingsError      a setting is unknown, malformed or contradicts another
├── MachineError       the machine lacks something: Java, a free port, disk, memory
│   └── JarError       a jar could not be fetched, or is not the one we locked
├── HomeInUse          another process holds this home
├── LogError           Kafka refused, is away, or a topic is not as it must be
├── JournalError       the collector's journal did not take an entry; nothing of it is kept
│   ├── JournalFull    too much waits for Kafka, or for the disk
│   ├── JournalSmall   the entry is larger than the whole journal may be
│   └── JournalBroken  the disk refused
├── InvalidEvent       an event does not fit its stream's schema
├── InvalidPosition    a position that no server of ours could have given out
├── QueryError         a client's filter or SQL is wrong or not allowed
├── NotReachable       no server answered a client
├── RequestRefused     a server answered a client with no; carries the status
├── NotAllSent         a sender could not hand in everything; says what is in and what is unclear
└── ViewFailed         a continuous query cannot be built or does not stay up
    └── TopicChanged   a topic that it needs was deleted, or is another one of the same name

An error says what was attempted, on what, why it failed and what to do. `retry` says whether the
same call can succeed later without a change by the user.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path


class MillstreamError(Exception):
    """A failure that the message alone explains; it is shown to users without a stack trace."""

    retry = False

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


class PipelineError(MillstreamError):
    """A mistake in a pipeline file, with the place where the user must look."""

    def __init__(
        self, message: str, *, file: Path | str | None = None, line: int = 0, remedy: str = ""
    ) -> None:
        self.file = str(file) if file is not None else ""
        self.line = line
        super().__init__(message, remedy=in_sql(remedy) if self.file.endswith(".sql") else remedy)

    def __str__(self) -> str:
        line = f":{self.line}" if self.line else ""
        place = f"{self.file}{line}: " if self.file else ""
        return f"{place}{super().__str__()}"


class PipelineErrors(PipelineError):
    """Every mistake that was found in a pipeline file; the first one's place is its own."""

    def __init__(self, errors: Sequence[PipelineError]) -> None:
        first = errors[0]
        super().__init__(first.message, file=first.file, line=first.line, remedy=first.remedy)
        self.errors = tuple(errors)

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))


_IN_SQL = (
    (re.compile(r"\b(\w+)=\[([^\]]*)\]"), r"\1 = (\2)"),
    (re.compile(r"\b(\w+)=\{'(\w+)': '(\w+)'\}"), r"\1 = (\2 = '\3')"),
    (re.compile(r"\b(\w+)=([\"'])([^\"']*)\2"), r"\1 = '\3'"),
    (re.compile(r"F\.lit\('(\w+)'\)\.alias\('(\w+)'\)"), r"'\1' AS \2"),
    (re.compile(r"app\.stream\(…\)"), "CREATE STREAM …"),
)


def in_sql(remedy: str) -> str:
    """A remedy whose options are written as in Python, as an SQL file has them."""
    for pattern, replacement in _IN_SQL:
        remedy = pattern.sub(replacement, remedy)
    return remedy


class SettingsError(MillstreamError):
    """A setting that cannot be used as it is."""


class MachineError(MillstreamError):
    """Something that this machine lacks."""


class JarError(MachineError):
    """A jar that could not be had, or is not the one that the lock names."""


class HomeInUse(MillstreamError):
    """Another live process holds the home (or this part of it)."""


class LogError(MillstreamError):
    """Kafka did not do what was asked of it."""

    retry = True


class JournalError(MillstreamError):
    """The journal takes no entry now; it will when Kafka or the disk does."""

    retry = True


class JournalFull(JournalError):
    """There is no room for another entry."""


class JournalSmall(JournalError):
    """The entry alone is larger than all entries may be together."""

    retry = False


class JournalBroken(JournalError):
    """The disk refused to write, to sync or to read."""


class InvalidEvent(MillstreamError):
    """An event that does not fit its stream's schema."""

    def __init__(self, message: str, *, field: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.field = field

    def bare(self) -> InvalidEvent:
        """The same, to be kept: without the calls and the error that it came from.

        Those hold what was in the calls; with thousands of invalid events in a body, only the
        garbage collector would free it, in one long stop.
        """
        self.__context__ = None
        return self.with_traceback(None)


class InvalidPosition(MillstreamError):
    """Text that is not a position."""


class QueryError(MillstreamError):
    """A client's filter, selection or SQL that cannot be answered."""


class ViewFailed(MillstreamError):
    """A view's continuous query that cannot be built or does not stay up."""

    retry = True


class TopicChanged(ViewFailed):
    """A topic of a view's query that was deleted, or is another one of the same name."""

    retry = False


class NotReachable(MillstreamError):
    """No server answered."""

    retry = True


class RequestRefused(MillstreamError):
    """A server's no, in its own words."""

    def __init__(self, message: str, *, status: int, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.status = status


class NotAllSent(MillstreamError):
    """A sender stopped before the end.

    The events of `unclear` (their places, from 0) may or may not be in: sending them again could
    store them twice. `accepted` and `rejected` count the others that reached the collector.
    """

    def __init__(
        self,
        message: str,
        *,
        accepted: int,
        rejected: int,
        unclear: tuple[int, ...],
        remedy: str = "",
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.accepted = accepted
        self.rejected = rejected
        self.unclear = unclear
