"""Whose a topic is, and all that it holds: for those who know no pipeline, only the log."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from millstream.errors import MillstreamError
from millstream.log.consumer import bounds, read_range
from millstream.log.record import Record
from millstream.log.search import offsets_since
from millstream.log.settings import LogSettings
from millstream.log.topics import known_topics
from millstream.syntax.names import suggest

SECONDS = 30.0


def find_app(
    log: LogSettings, kind: str, name: str, what: str, remedy: str = "", app: str = ""
) -> str:
    """The pipeline with a topic `<app>.<kind>.<name>`; MillstreamError if not exactly one has it.

    `what` says of which kind it is in words; `remedy`, what to do if the log has none at all; `app`
    is the pipeline that was asked for, if one was.
    """
    infix = f".{kind}."
    pairs = [topic.split(infix) for topic in known_topics(log) if topic.count(infix) == 1]
    if app:
        pairs = _of_app(app, pairs)
    found = sorted(each for each, named in pairs if named == name)
    if len(found) == 1:
        return found[0]
    if found:
        raise MillstreamError(
            f"several pipelines have a {what} {name!r}: {', '.join(found)}",
            remedy="say which one: --app NAME",
        )
    known = sorted({named for _, named in pairs})
    raise MillstreamError(
        f"the log has no {what} {name!r}", remedy=suggest(name, known) if known else remedy
    )


def _of_app(app: str, pairs: list[list[str]]) -> list[list[str]]:
    check_app(app, {each for each, _ in pairs})
    return [pair for pair in pairs if pair[0] == app]


def check_app(app: str, known: Collection[str]) -> None:
    """MillstreamError if the log does not know the pipeline that was asked for."""
    if app not in known:
        raise MillstreamError(
            f"the log has no pipeline {app!r}",
            remedy=suggest(app, sorted(known)) if known else "start the system once",
        )


def read_held(log: LogSettings, topic: str, since: int = 0) -> list[Iterator[Record]]:
    """The records of each partition up to now, from a moment (milliseconds) on; blocks."""
    held = bounds(log, topic, SECONDS)
    starts = offsets_since(log, {topic: since}) if since else {}
    spans = [
        (partition, max(first, starts.get((topic, partition), first)), end)
        for partition, (first, end) in sorted(held.items())
    ]
    return [
        read_range(log, topic, partition, start, end, patience=SECONDS)
        for partition, start, end in spans
        if start < end
    ]
