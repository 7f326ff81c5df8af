"""What every description of a source has; `reader` beside it does the reading."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import urlsplit

from millstream.syntax.urls import without_secrets


class Source:
    """Where a stream's events are pulled from, as a pipeline says it. Subclasses are dataclasses.

    Every field of a subclass can be given as text, so that SQL can say it too.
    """

    kind: ClassVar[str]
    schemes: ClassVar[tuple[str, ...]] = ()  # of URLs that mean this source, when only one is given
    example: ClassVar[str]  # how to write it in Python, for error messages
    sql_example: ClassVar[str]  # and in SQL

    @property
    def address(self) -> str:
        """Where it reads from, without secrets: for people, logs and metrics."""
        raise NotImplementedError

    def problem(self) -> str | None:
        """What is wrong with it, as in "has the source 'x', which is …"; None if nothing is."""
        raise NotImplementedError


def shown(url: object) -> str:
    """What an error may quote of something that should be a URL."""
    try:
        return repr(without_secrets(url) if isinstance(url, str) else url)
    except ValueError:  # brackets that do not close
        return "of a URL that cannot be read"


def url_problem(url: object, schemes: tuple[str, ...], what: str) -> str | None:
    """What is wrong with a URL that must have one of these schemes and a host."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is not None and parts.scheme in schemes and parts.hostname and parts.port != 0:
            return None
    except ValueError:  # a port that is no number, brackets that do not close
        pass
    return f"has the source {shown(url)}, which is not the address of {what}"
