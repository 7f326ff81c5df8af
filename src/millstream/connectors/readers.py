"""The reader of each kind of source. A reader's module is imported when a pipeline uses it."""

from __future__ import annotations

from importlib import import_module

from millstream.connectors.interface import Reader
from millstream.connectors.settings import SourceSettings
from millstream.connectors.source_description import Source

READERS = {
    "directory": "directory.reader:DirectoryReader",
    "http_lines": "http_lines.reader:HttpLinesReader",
    "kafka": "kafka.reader:KafkaTopicReader",
    "mqtt": "mqtt.reader:MqttReader",
    "postgres": "postgres.reader:PostgresReader",
    "sse": "sse.reader:SseReader",
    "tcp_lines": "tcp.reader:TcpLinesReader",
    "tcp_listener": "tcp.reader:TcpListenerReader",
    "udp": "udp.reader:UdpReader",
    "websocket": "websocket.reader:WebSocketReader",
}


def reader_of(stream: str, source: Source, settings: SourceSettings) -> Reader:
    """The reader that supplies a stream from its source."""
    module, _, name = READERS[source.kind].partition(":")
    kind = getattr(import_module(f"millstream.connectors.{module}"), name)
    reader: Reader = kind(stream, source, settings)
    return reader
