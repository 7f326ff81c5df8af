"""Millstream: events go in at one end, live answers come out at the other.

The path of the data, and where each step lives:

    senders → collect → log (Kafka) → analyze (Spark) → log → store → serve → clients

    millstream.collect   takes events in: HTTP, and sources that it pulls from
    millstream.log       Kafka: the only thing that two tiers share
    millstream.analyze   runs the continuous queries that keep views up to date
    millstream.store     what a view holds in memory
    millstream.serve     gives views and their changes to clients
    millstream.client    reads and writes a running system from Python
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.connectors import (
        DirectorySource,
        HttpLinesSource,
        KafkaTopicSource,
        MqttSource,
        PostgresSource,
        SseSource,
        TcpLinesSource,
        TcpListener,
        UdpSource,
        WebSocketSource,
    )
    from millstream.errors import MillstreamError
    from millstream.pipeline import windows
    from millstream.pipeline.app import App

__all__ = [
    "App",
    "DirectorySource",
    "HttpLinesSource",
    "KafkaTopicSource",
    "MillstreamError",
    "MqttSource",
    "PostgresSource",
    "SseSource",
    "TcpLinesSource",
    "TcpListener",
    "UdpSource",
    "WebSocketSource",
    "windows",
]
__version__ = "0.1.0"

_HOMES = {
    "App": "pipeline.app",
    "DirectorySource": "connectors",
    "HttpLinesSource": "connectors",
    "KafkaTopicSource": "connectors",
    "MillstreamError": "errors",
    "MqttSource": "connectors",
    "PostgresSource": "connectors",
    "SseSource": "connectors",
    "TcpLinesSource": "connectors",
    "TcpListener": "connectors",
    "UdpSource": "connectors",
    "WebSocketSource": "connectors",
}


def __getattr__(name: str) -> Any:
    # The public names are imported when they are asked for: `millstream --help` needs none of them,
    # and what they stand on takes longer to import than the answer to take.
    from importlib import import_module

    if name == "windows":
        return import_module("millstream.pipeline.windows")
    if name not in _HOMES:
        raise AttributeError(f"module 'millstream' has no attribute {name!r}")
    return getattr(import_module(f"millstream.{_HOMES[name]}"), name)
