"""The kinds of sources that the conformance suite runs over."""

from __future__ import annotations

from tests.connectors.cases.directory import DirectoryCase
from tests.connectors.cases.http_lines import HttpLinesCase
from tests.connectors.cases.kafka import KafkaTopicCase
from tests.connectors.cases.mqtt import MqttCase
from tests.connectors.cases.postgres import PostgresCase
from tests.connectors.cases.sse import SseCase
from tests.connectors.cases.tcp_lines import TcpLinesCase, TcpListenerCase
from tests.connectors.cases.udp import UdpCase
from tests.connectors.cases.websocket import WebSocketCase
from tests.connectors.conformance_case import Case

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
