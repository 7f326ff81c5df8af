"""Millstream: collects events, analyzes them continuously, and serves the results live.

The path of the data, and the package of each step:

    senders and sources → collect → log (Kafka) → analyze (Spark) → log → serve → clients

    millstream.collect     receives events over HTTP, and reads sources
    millstream.connectors  one folder per kind of source: its description and its reader
    millstream.log         Kafka: the only thing that two tiers share
    millstream.analyze     runs the continuous queries of views on Spark
    millstream.store       holds a view's rows in memory, and answers SQL over them
    millstream.serve       sends views and their changes to clients
    millstream.client      sends events and reads views from Python

They share `pipeline` (a user's streams and views), `schema`, `expression`, `values`, `syntax`,
`web` (HTTP and access control) and `runtime` (this machine). `cli` has the commands, `supervise`
runs the tiers as processes, and `simulation` generates events with known results for tests.
"""

from __future__ import annotations

from importlib import import_module
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

_MODULES = {"App": "pipeline.app", "MillstreamError": "errors"}  # the others: connectors


def __getattr__(name: str) -> Any:
    # The public names are imported on first use: `millstream --help` needs none of them, and their
    # imports take longer than its answer.
    if name not in __all__:
        raise AttributeError(f"module 'millstream' has no attribute {name!r}")
    if name == "windows":
        return import_module("millstream.pipeline.windows")
    return getattr(import_module(f"millstream.{_MODULES.get(name, 'connectors')}"), name)
