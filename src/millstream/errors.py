"""All errors that Millstream raises on purpose.

MillstreamError
├── PipelineError      the user's pipeline file is wrong; carries file and line
│   └── PipelineErrors several such mistakes at once
├── SettingsError      a setting is unknown, invalid or contradicts another
├── MachineError       the machine lacks something: Java, a free port, disk, memory
│   └── JarError       a jar could not be downloaded, or differs from the locked one
├── HomeInUse          another process holds this home
├── LogError           Kafka refused, is not reachable, or a topic is misconfigured
├── JournalError       the collector's journal refused an entry; nothing of it is stored
│   ├── JournalFull    too many entries wait for Kafka or for the disk
│   ├── JournalSmall   the entry is larger than the journal may be
│   └── JournalBroken  the disk failed
├── InvalidEvent       an event does not fit its stream's schema
├── InvalidPosition    a text is not a position
├── QueryError         a client's filter or SQL is wrong, or not allowed
├── NotReachable       no server answered a client
├── RequestRefused     a server refused a client's request; carries the status
├── NotAllSent         a sender stopped early; says which events are accepted or unclear
└── ViewFailed         a continuous query cannot be built or keeps failing
    └── TopicChanged   one of its topics was deleted, or created again

An error says what was attempted, on what, why it failed and what to do. `retry` says whether the
same call can succeed later without action by the user.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path


class MillstreamError(Exception):
    """A failure that its message explains; users see it without a stack trace."""

    retry = False

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


class PipelineError(MillstreamError):
    """A mistake in a pipeline file, with file and line."""

    def __init__(
        self, message: str, *, file: Path | str | None = None, line: int = 0, remedy: str = ""
    ) -> None:
        self.file = str(file) if file is not None else ""
        self.line = line
        super().__init__(message, remedy=in_sql(remedy) if self.file.endswith(".sql") else remedy)

    def __str__(self) -> str:
        line = f":{self.line}" if self.line else ""
        location = f"{self.file}{line}: " if self.file else ""
        return f"{location}{super().__str__()}"


class PipelineErrors(PipelineError):
    """All mistakes in a pipeline file; its location is that of the first one."""

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
    """A remedy with Python options, rewritten for an SQL file."""
    for pattern, replacement in _IN_SQL:
        remedy = pattern.sub(replacement, remedy)
    return remedy


class SettingsError(MillstreamError):
    """A setting is not valid."""


class MachineError(MillstreamError):
    """This machine lacks something."""


class JarError(MachineError):
    """A jar could not be downloaded, or differs from the locked one."""


class HomeInUse(MillstreamError):
    """Another running process holds the home (or this part of it)."""


class LogError(MillstreamError):
    """A request to Kafka failed."""

    retry = True


class JournalError(MillstreamError):
    """The journal accepts no entry now; it will when Kafka or the disk works again."""

    retry = True


class JournalFull(JournalError):
    """The journal has no room for another entry."""


class JournalSmall(JournalError):
    """The entry is larger than the journal may be."""

    retry = False


class JournalBroken(JournalError):
    """The disk failed to write, sync or read."""


class InvalidEvent(MillstreamError):
    """An event does not fit its stream's schema."""

    def __init__(self, message: str, *, field: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.field = field

    def without_traceback(self) -> InvalidEvent:
        """The same error without traceback and context, to be stored.

        A traceback keeps the frames' variables alive. With thousands of invalid events in a body,
        only the garbage collector would free them, in one long pause.
        """
        self.__context__ = None
        return self.with_traceback(None)


class InvalidPosition(MillstreamError):
    """A text is not a position."""


class QueryError(MillstreamError):
    """A client's filter, selection or SQL cannot be answered."""


class ViewFailed(MillstreamError):
    """A view's continuous query cannot be built or keeps failing."""

    retry = True


class TopicChanged(ViewFailed):
    """A topic of a view's query was deleted, or created again."""

    retry = False


class NotReachable(MillstreamError):
    """No server answered."""

    retry = True


class RequestRefused(MillstreamError):
    """A server refused a request; the message is the server's."""

    def __init__(self, message: str, *, status: int, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.status = status


class NotAllSent(MillstreamError):
    """A sender stopped before the end.

    The events of `unclear` (indexes from 0) may or may not be stored: sending them again could
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
