"""The kinds of sources that the conformance suite runs over."""

from __future__ import annotations

from ..case import Case
from .directory import DirectoryCase
from .http_lines import HttpLinesCase
from .kafka import KafkaTopicCase
from .mqtt import MqttCase
from .postgres import PostgresCase
from .sse import SseCase
from .tcp_lines import TcpLinesCase, TcpListenerCase
from .udp import UdpCase
from .websocket import WebSocketCase

CASES: list[type[Case]] = [
    WebSocketCase,
    SseCase,
    HttpLinesCase,
    TcpLinesCase,
    TcpListenerCase,
    UdpCase,
    KafkaTopicCase,
    MqttCase,
    PostgresCase,
    DirectoryCase,
]
