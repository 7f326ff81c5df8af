"""Description of a PostgreSQL source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

from millstream.connectors.source_description import SourceDescription
from millstream.connectors.source_options import words

SSL_MODES = ("disable", "prefer", "require", "verify-ca", "verify-full")
_OPTIONS = ("host", "port", "sslmode", "sslrootcert")  # of the URL
_LONGEST_SLOT = 48  # PostgreSQL allows 63; the slot of a snapshot has a suffix
_SLOT = re.compile(rf"[a-z0-9_]{{1,{_LONGEST_SLOT}}}")


@dataclass(frozen=True, slots=True)
class PostgresSource(SourceDescription):
    """First the tables' rows, then each insert, update, delete and truncate as one event.

    `publication` and `slot` are created if they are missing; both are named `millstream_<stream>`
    by default. `on_lost` decides what happens when the server no longer has the changes since the
    last one read: "stop" (with an error), or "snapshot" (read the tables again).
    """

    kind: ClassVar[str] = "postgres"
    reader: ClassVar[str] = "PostgresReader"
    schemes: ClassVar[tuple[str, ...]] = ("postgresql", "postgres")
    example: ClassVar[str] = "PostgresSource('postgresql://user:password@host/db', 'public.orders')"
    sql_example: ClassVar[str] = (
        "(kind = 'postgres', url = 'postgresql://user:password@host/db', tables = 'orders')"
    )

    url: str = field(repr=False)
    tables: str | Sequence[str] = ""
    publication: str = ""
    slot: str = ""
    snapshot: bool | str = True
    on_lost: str = "stop"

    def __post_init__(self) -> None:
        names = words(self.tables)
        if isinstance(names, tuple) and all(isinstance(name, str) for name in names):
            names = tuple(name if "." in name else f"public.{name}" for name in names)
        object.__setattr__(self, "tables", names)
        if isinstance(self.snapshot, str) and self.snapshot.lower() in ("true", "false"):
            object.__setattr__(self, "snapshot", self.snapshot.lower() == "true")

    def publication_of(self, stream: str) -> str:
        """The publication's name, for the given stream."""
        return self.publication or f"millstream_{stream}"

    def slot_of(self, stream: str) -> str:
        """The replication slot's name, for the given stream."""
        return self.slot or f"millstream_{stream}"[:_LONGEST_SLOT]

    def problem(self) -> str | None:
        if wrong := self._url_problem():
            return wrong
        if not self.tables:
            return f"has the source {self.address!r} without tables, as in 'public.orders'"
        if self.slot and not _SLOT.fullmatch(self.slot):
            return (
                f"has a source with the slot {self.slot!r}, which is not made of at most "
                f"{_LONGEST_SLOT} of a-z, 0-9 and _"
            )
        if not isinstance(self.snapshot, bool):
            return f"has a source with snapshot={self.snapshot!r}, which is neither true nor false"
        if self.on_lost not in ("stop", "snapshot"):
            return f"has a source with on_lost={self.on_lost!r}, which is not 'stop' or 'snapshot'"
        if self.on_lost == "snapshot" and not self.snapshot:
            return "has a source with on_lost='snapshot' that may not read one: snapshot=False"
        return None

    def _url_problem(self) -> str | None:
        try:
            parts = urlsplit(self.url)
            options = parse_qs(parts.query)
            host = parts.hostname or options.get("host", [""])[0]
            known = parts.scheme in self.schemes and host and parts.port != 0
        except (ValueError, AttributeError, TypeError):  # a port that is not a number; not a text
            known, options = False, {}
        if not known or not parts.path.strip("/"):
            # The url is not quoted: it may hold a password.
            return "has a source whose url is not postgresql://user:password@host:port/database"
        for name in options:
            if name not in _OPTIONS:
                allowed = ", ".join(_OPTIONS)
                return f"has the source {self.address!r} with unknown ?{name}=; known: {allowed}"
        if not options.get("port", ["5432"])[0].isdecimal():
            return f"has the source {self.address!r} with a ?port= that is not a number"
        mode = options.get("sslmode", ["prefer"])[0]
        if mode not in SSL_MODES:
            allowed = ", ".join(SSL_MODES)
            return f"has the source {self.address!r} with sslmode {mode!r}; known: {allowed}"
        return None
