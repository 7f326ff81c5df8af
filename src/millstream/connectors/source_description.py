"""The base class of all source descriptions."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import urlsplit

from millstream.syntax.urls import without_secrets


class SourceDescription:
    """A source as a pipeline declares it. Subclasses are dataclasses.

    Every field of a subclass can be given as text, because SQL has no other values.
    """

    kind: ClassVar[str]
    reader: ClassVar[str]  # the class in `reader.py` beside the description
    schemes: ClassVar[tuple[str, ...]] = ()  # a URL with one of these alone means this source
    example: ClassVar[str]  # Python code, for error messages
    sql_example: ClassVar[str]

    url: str  # a field of most subclasses; the others define `address`

    @property
    def address(self) -> str:
        """The address to read from, without secrets: for people, logs and metrics."""
        return without_secrets(self.url)

    def problem(self) -> str | None:
        """What is wrong with it, as in "has the source 'x', which is …"; None if nothing is."""
        raise NotImplementedError


def quoted_url(url: object) -> str:
    """A URL as an error may quote it: without secrets."""
    try:
        return repr(without_secrets(url) if isinstance(url, str) else url)
    except ValueError:  # brackets that do not close
        return "of a URL that cannot be read"


def url_problem(
    url: object, schemes: tuple[str, ...], what: str, *, only_port: bool = False
) -> str | None:
    """What is wrong with a URL that must have one of these schemes and a host.

    With `only_port`, it must also have a port, and nothing else.
    """
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is not None and parts.scheme in schemes and parts.hostname and parts.port != 0:
            more = (parts.path.removeprefix("/"), parts.query, parts.fragment, parts.username)
            if not only_port or (parts.port and not any((*more, parts.password))):
                return None
    except ValueError:  # a port that is no number, brackets that do not close
        pass
    return f"has the source {quoted_url(url)}, which is not the address of {what}"
