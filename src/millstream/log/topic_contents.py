"""Finds the app of a topic, and reads whole topics: for commands without a pipeline."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from millstream.errors import LogError, MillstreamError
from millstream.log.consumer import bounds, read_range
from millstream.log.record import Record
from millstream.log.search import offsets_since
from millstream.log.settings import LogSettings
from millstream.log.topics import known_topics
from millstream.syntax.names import suggest

TIMEOUT = 30.0


def find_app(
    log: LogSettings, kind: str, name: str, what: str, remedy: str = "", app: str = ""
) -> str:
    """The app with a topic `<app>.<kind>.<name>`; MillstreamError unless exactly one has it.

    `what` is the kind in words, and `remedy` what to do if the log has no such topic at all. If
    `app` is given, only that app counts.
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
    """MillstreamError if the log has no topics of the app."""
    if app not in known:
        raise MillstreamError(
            f"the log has no pipeline {app!r}",
            remedy=suggest(app, sorted(known)) if known else "start the system once",
        )


def only_app(log: LogSettings, app: str = "") -> str:
    """The app in the log, or the given one; MillstreamError if it is unknown or not unique."""
    topics = known_topics(log)
    found = sorted(name.removesuffix(".audit") for name in topics if name.endswith(".audit"))
    if app:
        check_app(app, found)
        return app
    if len(found) == 1:
        return found[0]
    if not found:
        raise LogError("the log has no audit topic", remedy="start the system once")
    raise MillstreamError(
        f"the log has several pipelines: {', '.join(found)}", remedy="say which one: --app NAME"
    )


def read_topic(log: LogSettings, topic: str, since: int = 0) -> list[Iterator[Record]]:
    """The records of each partition up to now, from a time (milliseconds) on. Blocks."""
    held = bounds(log, topic, TIMEOUT)
    starts = offsets_since(log, {topic: since}) if since else {}
    spans = [
        (partition, max(first, starts.get((topic, partition), first)), end)
        for partition, (first, end) in sorted(held.items())
    ]
    return [
        read_range(log, topic, partition, start, end, patience=TIMEOUT)
        for partition, start, end in spans
        if start < end
    ]
