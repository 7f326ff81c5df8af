"""Description of a directory source."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from millstream.connectors.source_description import SourceDescription
from millstream.connectors.source_options import duration_problem

FORMATS = ("ndjson", "json", "csv", "parquet")
DONE = ("keep", "move", "delete")


@dataclass(frozen=True, slots=True)
class DirectorySource(SourceDescription):
    """Each file that arrives is read once: NDJSON, JSON, CSV with a header, or Parquet.

    The suffix tells the format (or else `format`) and the compression (`.gz`, `.zst`). A file is
    complete when it did not change for `settle`, or was renamed into place. After reading, `done`
    decides: the file stays ("keep"), is moved to the folder `moved_to` (relative to this one) or is
    deleted. A file that cannot be read stays, or is moved to `failed_to` unless `done` is "keep".
    """

    kind: ClassVar[str] = "directory"
    reader: ClassVar[str] = "DirectoryReader"
    schemes: ClassVar[tuple[str, ...]] = ("file",)
    example: ClassVar[str] = "DirectorySource('/var/spool/orders', pattern='*.csv')"
    sql_example: ClassVar[str] = (
        "(kind = 'directory', path = '/var/spool/orders', pattern = '*.csv')"
    )

    path: str | os.PathLike[str]
    pattern: str = "*"
    format: str = ""
    done: str = "keep"
    moved_to: str = "done"
    failed_to: str = "failed"
    settle: str = "2 seconds"
    poll: str = "1 second"

    def __post_init__(self) -> None:
        path = os.fspath(self.path) if isinstance(self.path, os.PathLike) else self.path
        if isinstance(path, str) and path.startswith("file:"):
            path = unquote(urlsplit(path).path)
        object.__setattr__(self, "path", path)

    @property
    def folder(self) -> str:
        """The folder's path."""
        return str(self.path)

    @property
    def address(self) -> str:
        return os.path.join(self.folder, self.pattern)

    def problem(self) -> str | None:
        if not isinstance(self.path, str) or not self.path or "\0" in self.path:
            return f"has the source {self.path!r}, which is not the path of a directory"
        if not self.pattern or "/" in self.pattern:
            return (
                f"has a source with pattern={self.pattern!r}, which is not a pattern of names as "
                "'*.csv' is"
            )
        if self.format and self.format not in FORMATS:
            return f"has a source with format={self.format!r}, which is none of {_listed(FORMATS)}"
        if self.done not in DONE:
            return f"has a source with done={self.done!r}, which is none of {_listed(DONE)}"
        for option in ("moved_to", "failed_to"):
            if os.path.normpath(getattr(self, option)) == ".":
                return f"has a source with {option}={getattr(self, option)!r}, the folder it reads"
        return duration_problem("settle", self.settle) or duration_problem(
            "poll", self.poll or "none"
        )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names)
