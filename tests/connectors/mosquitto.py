"""A real MQTT broker for tests; its log shows what it sent and what was acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tests.wait_until import until

_PATH = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/sbin"


class Mosquitto:
    """A broker that stores its sessions on disk, so that none is lost in a crash."""

    def __init__(self, folder: Path, *, anonymous: bool = True, persistence: bool = True) -> None:
        self.port = _free_port()
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self._database = folder / "mosquitto.db"
        self._log = folder / "mosquitto.log"
        self._configuration = folder / "mosquitto.conf"
        self._configuration.write_text(
            f"listener {self.port} 127.0.0.1\n"
            f"allow_anonymous {_word(anonymous)}\n"
            f"persistence {_word(persistence)}\npersistence_location {folder}/\n"
            "max_inflight_messages 0\nmax_queued_messages 0\n"
            f"log_dest file {self._log}\nlog_type all\n"
            "user root\n"  # else it switches to a user who may not write here
            "set_tcp_nodelay true\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        program = shutil.which("mosquitto", path=_PATH)
        assert program, "mosquitto is missing: run scripts/setup test"
        self._process = subprocess.Popen(
            [program, "-c", str(self._configuration)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < deadline, "mosquitto accepts no connections"
                time.sleep(0.01)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop it cleanly."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Pause it: it neither answers nor closes connections."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume it after a pause."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def save(self) -> None:
        """Wait until its current sessions are on disk."""
        assert self._process is not None
        before = self._saved()
        self._process.send_signal(signal.SIGUSR1)
        await until(lambda: self._saved() != before)

    def _saved(self) -> int:
        return self._database.stat().st_ino if self._database.exists() else 0

    def has_subscribed(self, client_id: str) -> bool:
        """Whether it stores messages for a client."""
        return f"Sending SUBACK to {client_id}" in self._read_log()

    def sent_to(self, client_id: str) -> int:
        """How many messages it sent to a client, including resent ones."""
        return len(re.findall(rf"Sending PUBLISH to {re.escape(client_id)} ", self._read_log()))

    def acknowledged_by(self, client_id: str) -> int:
        """How many messages a client acknowledged."""
        return len(re.findall(rf"Received PUBACK from {re.escape(client_id)} ", self._read_log()))

    def is_awaiting(self, client_id: str) -> bool:
        """Whether a client has messages that it did not acknowledge, by the broker's numbers."""
        name = re.escape(client_id)
        awaited: set[str] = set()
        lines = rf"(Sending PUBLISH to|Received PUBACK from) {name} \(.*?(?:m|Mid: )(\d+)"
        for action, number in re.findall(lines, self._read_log()):
            (awaited.add if action.startswith("Sending") else awaited.discard)(number)
        return bool(awaited)

    def _read_log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
            self._process.wait(30)

    async def publish(
        self,
        topic: str,
        payloads: Iterable[bytes],
        *,
        qos: int = 1,
        retain: bool = False,
        content_type: str = "",
        properties: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Publish, and wait until the broker has accepted all messages."""
        given = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        if content_type:
            given.ContentType = content_type
        if pairs := list(properties):
            given.UserProperty = pairs
        await asyncio.to_thread(self._publish, topic, list(payloads), qos, retain, given)

    @contextlib.asynccontextmanager
    async def sending(self, topic: str, payloads: Iterable[bytes]) -> AsyncIterator[None]:
        """Pause it during the block; when it resumes, it first sends these messages."""
        client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        connected = threading.Event()
        client.on_connect = lambda *_: connected.set()
        client.connect("127.0.0.1", self.port)
        client.loop_start()
        try:
            assert await asyncio.to_thread(connected.wait, 30)
            self.pause()
            for payload in payloads:
                client.publish(topic, payload, qos=1)
            await until(lambda: not client.want_write())
            yield
            self.resume()
        finally:
            client.disconnect()
            client.loop_stop()

    def _publish(
        self, topic: str, payloads: list[bytes], qos: int, retain: bool, properties: Properties
    ) -> None:
        client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        client.max_queued_messages_set(0)
        client.connect("127.0.0.1", self.port)
        client.loop_start()
        try:
            for sent in [
                client.publish(topic, payload, qos, retain, properties) for payload in payloads
            ]:
                sent.wait_for_publish(30)
                assert sent.is_published()
        finally:
            client.disconnect()
            client.loop_stop()


def _word(given: bool) -> str:
    return str(given).lower()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
