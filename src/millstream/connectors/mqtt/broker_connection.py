"""One connection to an MQTT broker: paho's protocol on the event loop's own selector.

Paho's network thread is not used: it waits with select(), which fails in a process that has more
than 1,024 open files, as a collector with many senders does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from paho.mqtt import MQTTException
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from millstream.connectors.mqtt.description import MqttSource
from millstream.connectors.reading.reconnecting_reader import ConnectionLost
from millstream.connectors.settings import SourceSettings

_OPEN_SECONDS = 10.0
_MOST_AT_ONCE = 64  # packets, before other tasks of the event loop run
_PINGREQ = b"\xc0\x00"
# What paho's parser raises for malformed packets.
_GARBAGE = (MQTTException, ValueError, LookupError, TypeError, struct.error)


class BrokerConnection:
    """A session's connection. Only `open` uses another thread than the event loop's."""

    def __init__(self, client_id: str, source: MqttSource, settings: SourceSettings) -> None:
        self.session_present = False
        self._source = source
        self._most_messages = int(source.receive_maximum)
        self._most_bytes = settings.max_body
        self._keepalive = max(1, round(settings.ping_after))
        self._loop = asyncio.get_running_loop()
        self._messages: deque[MQTTMessage] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._lost = ""
        self._granted: list[Any] | None = None
        self._reading = False
        self._writing = False
        self._keepalive_from = 0.0
        self._descriptor = -1
        self._tick: asyncio.TimerHandle | None = None
        self._client = self._new_client(client_id)

    def _new_client(self, client_id: str) -> Client:
        client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.connect_timeout = _OPEN_SECONDS
        username, password = self._source.credentials
        if username or password:
            client.username_pw_set(username, password or None)
        if self._source.tls:
            client.tls_set_context(_tls(self._source))
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.on_disconnect = self._on_disconnect
        return client

    @property
    def lost(self) -> bool:
        """Whether the connection is gone: its messages can no longer be acknowledged."""
        return bool(self._lost)

    async def open(self) -> None:
        """Connect and subscribe; OSError, TimeoutError or ConnectionLost if that fails."""
        # In a thread: paho looks up the name and negotiates TLS with blocking calls.
        connecting = self._loop.run_in_executor(None, self._connect)
        try:
            await asyncio.shield(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(lambda done: self._drop(done.exception()))
            raise
        self._attach()
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                await self._subscribe()
        except TimeoutError:
            raise ConnectionLost(f"the broker did not answer in {_OPEN_SECONDS:g} s") from None
        for topic, reason in zip(self._source.topic, self._granted or (), strict=False):
            if reason.is_failure:
                raise ConnectionLost(f"the broker refuses the subscription to {topic!r}: {reason}")
            if reason.value < 1:
                raise ConnectionLost(
                    f"the broker grants {topic!r} without acknowledgements (QoS 0) only; allow "
                    "QoS 1 in its configuration"
                )

    async def _subscribe(self) -> None:
        await self._until(lambda: self._descriptor >= 0 and self._client.is_connected())
        # Retained messages are sent for a new subscription, not for each connection.
        options = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB)
        self._client.subscribe([(topic, options) for topic in self._source.topic])
        await self._until(lambda: self._granted is not None)

    async def message(self) -> MQTTMessage:
        """The next message; ConnectionLost when the connection is gone."""
        if not self._messages:
            await self._until(lambda: self._messages)
        message = self._messages.popleft()
        self._bytes -= len(message.payload)
        if not self._reading and not self._is_full():
            self._resume()
        return message

    def acknowledge(self, message: MQTTMessage) -> None:
        """Acknowledge a message to the broker; does nothing if the connection is gone."""
        if not self._lost:
            self._client.ack(message.mid, message.qos)

    async def close(self, seconds: float) -> None:
        """Write what is pending, for at most `seconds`, and disconnect; the session stays."""
        if self._tick is not None:
            self._tick.cancel()
        if not self._lost and self._descriptor >= 0:
            with socket.socket(fileno=os.dup(self._descriptor)) as line:
                self._client.disconnect()
                with contextlib.suppress(TimeoutError, OSError):
                    async with asyncio.timeout(seconds):
                        await self._hang_up(line)
        self._detach()
        self._drop()

    async def _hang_up(self, line: socket.socket) -> None:
        """Wait until the broker has read everything and closes the connection.

        Paho closes its socket as soon as it has written. If the broker then sends something, the
        kernel answers with a reset, and the broker drops acknowledgements that it has not read.
        """
        with contextlib.suppress(ConnectionLost):
            await self._until(lambda: False)
        line.setblocking(False)
        line.shutdown(socket.SHUT_WR)
        while await self._loop.sock_recv(line, 64 << 10):
            pass

    def _connect(self) -> None:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = self._source.session_seconds
        properties.ReceiveMaximum = self._most_messages
        self._client.connect(
            self._source.host,
            self._source.port,
            keepalive=self._keepalive,
            clean_start=False,
            properties=properties,
        )

    def _drop(self, _: BaseException | None = None) -> None:
        # Paho has no call for this: it closes its socket on an error, or when the client is freed.
        if (connection := self._client.socket()) is not None:
            connection.close()

    def _attach(self) -> None:
        connection = self._client.socket()
        if connection is None:
            raise ConnectionLost(self._lost or "the broker closed the connection")
        self._descriptor = connection.fileno()
        self._client.on_socket_close = lambda *_: self._detach()
        self._client.on_socket_register_write = lambda *_: self._want_write(True)
        self._client.on_socket_unregister_write = lambda *_: self._want_write(False)
        self._resume()
        self._want_write(self._client.want_write())
        self._tick = self._loop.call_later(self._keepalive / 4, self._keep_alive)

    def _detach(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            self._loop.remove_writer(self._descriptor)
            self._descriptor, self._reading, self._writing = -1, False, False

    def _resume(self) -> None:
        if self._descriptor >= 0 and not self._reading:
            self._loop.add_reader(self._descriptor, self._read)
            self._reading = True
            self._keepalive_from = time.monotonic() + self._keepalive
            if self._pending():  # TLS holds decrypted bytes that we have not read yet
                self._loop.call_soon(self._read)

    def _want_write(self, wanted: bool) -> None:
        if self._descriptor >= 0 and wanted != self._writing:
            self._writing = wanted
            if wanted:
                self._loop.add_writer(self._descriptor, self._write)
            else:
                self._loop.remove_writer(self._descriptor)

    def _is_full(self) -> bool:
        if self._granted is None:
            # The session's stored messages arrive before the answer to our subscription, so we
            # must read on.
            return False
        # A broker that respects the receive maximum can exceed this with QoS 0 only.
        return len(self._messages) > self._most_messages or self._bytes > self._most_bytes

    def _pending(self) -> bool:
        connection = self._client.socket()
        return isinstance(connection, ssl.SSLSocket) and connection.pending() > 0

    def _read(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            if not self._reading:
                return
            before = len(self._messages)
            try:
                self._check(self._client.loop_read())
            except _GARBAGE as error:
                self._end(f"the broker sent what is not MQTT 5: {error!r}")
                self._detach()
            if self._descriptor >= 0 and self._is_full():
                self._loop.remove_reader(self._descriptor)
                self._reading = False
            elif len(self._messages) == before and not self._pending():
                return
        if self._pending():
            self._loop.call_soon(self._read)

    def _write(self) -> None:
        self._check(self._client.loop_write())

    def _keep_alive(self) -> None:
        if self._reading and time.monotonic() >= self._keepalive_from:
            self._check(self._client.loop_misc())
        elif not self._reading and not self._client.want_write():
            # We are the slow ones: ping the broker without waiting for an answer, which would be
            # behind messages that we do not read.
            with contextlib.suppress(OSError):
                if (connection := self._client.socket()) is not None:
                    connection.send(_PINGREQ)
        if not self._lost:
            self._tick = self._loop.call_later(self._keepalive / 4, self._keep_alive)

    def _check(self, code: MQTTErrorCode) -> None:
        if code != MQTTErrorCode.MQTT_ERR_SUCCESS and not self._lost:
            self._end(f"the connection broke: {code.name}")

    def _end(self, why: str) -> None:
        if not self._lost:
            self._lost = why
            # Messages with QoS 1 can no longer be acknowledged: the broker resends them.
            self._messages = deque(each for each in self._messages if each.qos == 0)
        self._changed.set()

    async def _until(self, holds: Callable[[], object]) -> None:
        while not holds():
            if self._lost:
                raise ConnectionLost(self._lost)
            self._changed.clear()
            await self._changed.wait()
        if self._lost:
            raise ConnectionLost(self._lost)

    def _on_connect(self, _: Any, __: Any, flags: Any, reason: Any, ___: Any) -> None:
        self.session_present = flags.session_present
        if reason.is_failure:
            self._end(f"the broker refuses the connection: {reason}")
        self._changed.set()

    def _on_subscribe(self, _: Any, __: Any, ___: Any, reasons: list[Any], ____: Any) -> None:
        self._granted = reasons
        self._changed.set()

    def _on_message(self, _: Any, __: Any, message: MQTTMessage) -> None:
        self._messages.append(message)
        self._bytes += len(message.payload)
        self._changed.set()

    def _on_disconnect(self, _: Any, __: Any, flags: Any, reason: Any, ___: Any) -> None:
        if flags.is_disconnect_packet_from_server and reason.getName() == "Session taken over":
            self._end(
                "another client connected with the same client id; give each collector a "
                "client_id of its own, and share the topic among them by $share/group/topic"
            )
        else:
            self._end(f"the connection ended: {reason}")


def _tls(source: MqttSource) -> ssl.SSLContext:
    files = source.ca_file
    try:
        context = ssl.create_default_context(cafile=source.ca_file or None)
        if source.cert_file:
            files = f"{source.cert_file} with {source.key_file}"
            context.load_cert_chain(source.cert_file, source.key_file)
    except OSError as error:
        raise ConnectionLost(
            f"cannot use the certificate {files}: {error.strerror or error}"
        ) from None
    return context
