"""One module per kind of source. They are imported when a pipeline uses them, not before."""

from __future__ import annotations

from importlib import import_module

from millstream.collect.settings import CollectSettings
from millstream.connectors import Source
from millstream.connectors.interface import Reader

READERS = {
    "directory": "directory.reader:DirectoryReader",
    "mqtt": "mqtt:MqttReader",
    "http_lines": "http_lines:HttpLinesReader",
    "kafka": "kafka:KafkaTopicReader",
    "postgres": "postgres.reader:PostgresReader",
    "sse": "sse:SseReader",
    "tcp_lines": "tcp_lines:TcpLinesReader",
    "tcp_listener": "tcp_lines:TcpListenerReader",
    "udp": "udp:UdpReader",
    "websocket": "websocket:WebSocketReader",
}


def reader_of(stream: str, source: Source, settings: CollectSettings) -> Reader:
    """What reads `source` for a stream."""
    module, _, name = READERS[source.kind].partition(":")
    reader: Reader = getattr(import_module(f"{__name__}.{module}"), name)(stream, source, settings)
    return reader
