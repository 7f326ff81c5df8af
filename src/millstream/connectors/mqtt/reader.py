"""Reader of topics of an MQTT 5 broker."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections import deque
from functools import lru_cache

from paho.mqtt.client import MQTTMessage, topic_matches_sub

from millstream.connectors.interface import ReaderOutput
from millstream.connectors.mqtt.broker_connection import BrokerConnection
from millstream.connectors.mqtt.description import MqttSource, without_group
from millstream.connectors.reading.reconnecting_reader import ConnectionLost, ReconnectingReader
from millstream.connectors.settings import SourceSettings

_STORE_SECONDS, _CLOSE_SECONDS = 0.5, 0.3
_SHORT_SECONDS, _MANY_SHORT = 5.0, 3
_ATTRIBUTE = re.compile(r"[a-z0-9]+", re.ASCII)

_log = logging.getLogger(__name__)


class MqttReader(ReconnectingReader[MqttSource]):
    """Keeps a session with the broker, and acknowledges each message once it is on disk.

    Delivery is at least once: the broker resends what was not acknowledged, and MQTT cannot tell a
    resent message from an equal one. A sender's CloudEvents id can.
    """

    def __init__(self, stream: str, source: MqttSource, settings: SourceSettings) -> None:
        super().__init__(stream, source, settings)
        self.client_id = source.client_id or _client_id(stream, source)
        self._had_session = False
        self._short_lived = 0  # consecutive connections that ended soon
        self._filters = [without_group(topic) for topic in source.topic]
        self._wanted = lru_cache(4096)(self._matches)

    async def read(self, output: ReaderOutput) -> None:
        """Read until the connection ends."""
        connection = BrokerConnection(self.client_id, self.source, self.settings)
        unstored: deque[tuple[MQTTMessage, asyncio.Future[None]]] = deque()
        try:
            await connection.open()
            self._check_session(connection, output)
            self.connected()
            began = time.monotonic()
            while True:
                message = await self._next(connection, began)
                stored = await self._offer(message, output)
                unstored.append((message, stored))
                stored.add_done_callback(lambda _: _acknowledge(connection, unstored))
        finally:
            if unstored and not connection.lost:  # acknowledged now, they are not resent
                await asyncio.wait([stored for _, stored in unstored], timeout=_STORE_SECONDS)
            await connection.close(_CLOSE_SECONDS)

    async def _next(self, connection: BrokerConnection, began: float) -> MQTTMessage:
        try:
            return await connection.message()
        except ConnectionLost as error:
            short = time.monotonic() - began < _SHORT_SECONDS
            self._short_lived = self._short_lived + 1 if short else 0
            if self._short_lived < _MANY_SHORT:
                raise
            # Some brokers give no reason when they drop a connection for another with its id.
            raise ConnectionLost(
                f"{error}, again and again; does another client use the client id "
                f"{self.client_id!r}, too?"
            ) from None

    async def _offer(self, message: MQTTMessage, output: ReaderOutput) -> asyncio.Future[None]:
        topic, payload = _topic(message), bytes(message.payload)
        too_large = len(payload) > self.settings.max_body
        if too_large:
            self.missed(1, "larger than collect.max_body")
        if too_large or not payload or not self._wanted(topic):
            # Empty (this is how a retained message is deleted), or from a subscription of a former
            # pipeline that the session still has.
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        properties = message.properties
        stored = await output.offer(
            payload,
            content_type=getattr(properties, "ContentType", "") or "application/json",
            attributes=_attributes(topic, getattr(properties, "UserProperty", [])),
            bookmark=self.client_id.encode(),
        )
        self.received()
        return stored

    def _matches(self, topic: str) -> bool:
        if any(topic_matches_sub(each, topic) for each in self._filters):
            return True
        _log.warning(
            "ignored messages of topic %s, which stream %s no longer reads; the session %s at "
            "%s still subscribes to it: give the source another client_id to end that",
            topic,
            self.stream,
            self.client_id,
            self.source.address,
        )
        return False

    def _check_session(self, connection: BrokerConnection, output: ReaderOutput) -> None:
        if not connection.session_present and (
            self._had_session or output.bookmark == self.client_id.encode()
        ):
            self.warn(
                f"the broker has forgotten the session {self.client_id}: messages published while "
                "it was disconnected are lost; let the broker store its state on disk, or raise "
                "session_expiry"
            )
        self._had_session = True


def _acknowledge(
    connection: BrokerConnection, unstored: deque[tuple[MQTTMessage, asyncio.Future[None]]]
) -> None:
    # In the order of arrival, as MQTT requires.
    while unstored and unstored[0][1].done():
        message, stored = unstored.popleft()
        if not stored.cancelled():
            connection.acknowledge(message)


def _client_id(stream: str, source: MqttSource) -> str:
    # Collectors that share a subscription need different ids. Any other subscription has one
    # reader: the broker disconnects a second one with the same id.
    return f"millstream-{stream}" + (f"-{socket.gethostname()}" if source.shared else "")


def _topic(message: MQTTMessage) -> str:
    try:
        return message.topic
    except UnicodeDecodeError:
        return ""


def _attributes(topic: str, properties: list[tuple[str, str]]) -> dict[str, str]:
    """CloudEvents attributes from the user properties (MQTT binding), and the topic."""
    given = {name: value for name, value in properties if _ATTRIBUTE.fullmatch(name)}
    if "specversion" not in given:
        given = {name: given[name] for name in ("traceparent",) if name in given}
    return {"subject": topic, **given}
