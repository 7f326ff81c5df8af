"""Connectors: one folder per outside system that `collect` reads from.

`description.py` is what a user writes in a pipeline, `reader.py` reads the system. To add one, add
its folder, and its description to `SOURCES`.
"""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from millstream.connectors.directory.description import DirectorySource
from millstream.connectors.http_lines.description import HttpLinesSource
from millstream.connectors.kafka.description import KafkaTopicSource
from millstream.connectors.mqtt.description import MqttSource
from millstream.connectors.postgres.description import PostgresSource
from millstream.connectors.source_description import SourceDescription, quoted_url
from millstream.connectors.sse.description import SseSource
from millstream.connectors.tcp.description import TcpLinesSource, TcpListener
from millstream.connectors.udp.description import UdpSource
from millstream.connectors.websocket.description import WebSocketSource
from millstream.syntax.names import suggest

if TYPE_CHECKING:
    from millstream.connectors.interface import SourceReader
    from millstream.connectors.settings import SourceSettings

__all__ = [
    "SOURCES",
    "DirectorySource",
    "HttpLinesSource",
    "KafkaTopicSource",
    "MqttSource",
    "PostgresSource",
    "SourceDescription",
    "SseSource",
    "TcpLinesSource",
    "TcpListener",
    "UdpSource",
    "WebSocketSource",
    "create_reader",
    "source_from_text",
]

SOURCES: tuple[type[SourceDescription], ...] = (
    WebSocketSource,
    SseSource,
    HttpLinesSource,
    TcpLinesSource,
    TcpListener,
    UdpSource,
    KafkaTopicSource,
    MqttSource,
    PostgresSource,
    DirectorySource,
)


def create_reader(stream: str, source: SourceDescription, settings: SourceSettings) -> SourceReader:
    """The reader that supplies a stream from its source.

    Its module is imported here, so a pipeline imports only the client libraries that it uses.
    """
    folder = type(source).__module__.rpartition(".")[0]
    reader: SourceReader = getattr(import_module(f"{folder}.reader"), source.reader)(
        stream, source, settings
    )
    return reader


def source_from_text(written: str | dict[str, str]) -> SourceDescription:
    """The source that SQL writes as a URL, or as named options, one of which is its kind.

    ValueError says what is wrong and, after a semicolon, what to write instead.
    """
    if isinstance(written, str):
        return _by_url(written)
    options: dict[str, Any] = dict(written)
    kinds = {source.kind: source for source in SOURCES}
    kind = options.pop("kind", "")
    if kind not in kinds:
        raise ValueError(f"has a source of unknown kind {kind!r}; {suggest(kind, list(kinds))}")
    known = [field.name for field in fields(kinds[kind])]  # type: ignore[arg-type]
    for name in options:
        if name not in known:
            raise ValueError(f"has a source with unknown option {name!r}; {suggest(name, known)}")
    try:
        return kinds[kind](**options)
    except TypeError:
        needed = ", ".join(known)
        raise ValueError(f"has an incomplete source of kind {kind!r}; it takes {needed}") from None


def _by_url(url: str) -> SourceDescription:
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    for source in SOURCES:
        if scheme in source.schemes:
            return source(url)  # type: ignore[call-arg]
    known = ", ".join(f"{scheme}://" for source in SOURCES for scheme in source.schemes)
    raise ValueError(
        f"has the source {quoted_url(url)}, whose beginning names no kind of source; begin it with "
        f"one of {known}, or write (kind = …)"
    )
