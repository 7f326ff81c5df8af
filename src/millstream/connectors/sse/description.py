"""Description of a source of server-sent events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from millstream.connectors.source_description import SourceDescription, url_problem
from millstream.connectors.source_options import duration_problem, headers_problem, pairs, words


@dataclass(frozen=True, slots=True)
class SseSource(SourceDescription):
    """The data of each server-sent event is one event; reading resumes after the last stored one.

    Only events of `types` are read (`message` if the server names no type); empty: all types. A
    server that sends nothing, not even a comment, for `silence` counts as dead.
    """

    kind: ClassVar[str] = "sse"
    reader: ClassVar[str] = "SseReader"
    example: ClassVar[str] = "SseSource('https://host/path')"
    sql_example: ClassVar[str] = "(kind = 'sse', url = 'https://host/path')"

    url: str = field(repr=False)
    headers: dict[str, str] = field(default_factory=dict, hash=False, repr=False)
    types: tuple[str, ...] = ()
    silence: str = "2 minutes"

    def __post_init__(self) -> None:
        object.__setattr__(self, "headers", pairs(self.headers, ":"))
        object.__setattr__(self, "types", words(self.types))

    def problem(self) -> str | None:
        return (
            url_problem(self.url, ("http", "https"), "server-sent events")
            or headers_problem(self.headers)
            or duration_problem("silence", self.silence)
        )
