"""Description of an HTTP lines source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from millstream.connectors.source_description import SourceDescription, url_problem
from millstream.connectors.source_options import duration_problem, headers_problem, pairs


@dataclass(frozen=True, slots=True)
class HttpLinesSource(SourceDescription):
    """Each line of an HTTP response is one event; the request is repeated when the response ends.

    A server that sends nothing, not even an empty line, for `silence` counts as dead. Without
    `silence`, only a server whose machine is gone counts as dead.
    """

    kind: ClassVar[str] = "http_lines"
    reader: ClassVar[str] = "HttpLinesReader"
    example: ClassVar[str] = "HttpLinesSource('https://host/path')"
    sql_example: ClassVar[str] = "(kind = 'http_lines', url = 'https://host/path')"

    url: str = field(repr=False)
    headers: dict[str, str] = field(default_factory=dict, hash=False, repr=False)
    silence: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "headers", pairs(self.headers, ":"))

    def problem(self) -> str | None:
        return (
            url_problem(self.url, ("http", "https"), "an HTTP answer")
            or headers_problem(self.headers)
            or duration_problem("silence", self.silence)
        )
