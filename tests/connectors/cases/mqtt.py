"""An MQTT broker behind a faulty proxy."""

from __future__ import annotations

from collections.abc import Sequence

from tests.connectors.conformance_case import PATIENT, Case, event
from tests.connectors.mosquitto import Mosquitto
from tests.connectors.proxy import Proxy
from tests.wait_until import until

from millstream.connectors import MqttSource

_CLIENT = "millstream-events"
_PORTION = 250


class MqttCase(Case):
    name = "mqtt"
    service = "mosquitto"
    why_no_hold = "the broker stores what a reader has not read, and does not slow publishers"
    flood, most_bytes = 3_000, 2_000_000
    # MQTT counts the time to a ping, and for its answer, in whole seconds.
    settings = PATIENT.model_copy(update={"ping_after": 10.0})
    hasty_settings = PATIENT.model_copy(update={"ping_after": 1.0})

    async def start(self) -> None:
        self._broker = Mosquitto(self.folder)
        self._broker.start()
        self._proxy = Proxy(self._broker.port)
        await self._proxy.start()

    async def stop(self) -> None:
        await self._proxy.stop()
        self._broker.stop()

    @property
    def source(self) -> MqttSource:
        return MqttSource(f"mqtt://127.0.0.1:{self._proxy.port}", "events/#")

    async def send(self, numbers: Sequence[int]) -> None:
        # Once the client has subscribed, the broker stores messages for it.
        await until(lambda: self._broker.has_subscribed(_CLIENT))
        await self._broker.publish("events/1", [event(number) for number in numbers])

    async def pour(self, total: int) -> None:
        for first in range(0, total, _PORTION):
            portion = range(first, min(first + _PORTION, total))
            await self._broker.publish("events/1", [event(each, 900) for each in portion])
            self.poured = portion.stop

    async def drop(self) -> None:
        await self._all_acknowledged()
        self._proxy.cut()

    async def garbage(self) -> None:
        payloads = (b"", b"\xff\xfe", b"{", b"[1", b"\n\n", b"y" * 200_000)
        await self._broker.publish("events/1", payloads)
        self._proxy.inject(b"\xff" * 100)  # not a packet

    async def stall(self) -> None:
        await self._all_acknowledged()
        self._proxy.stall()

    async def _all_acknowledged(self) -> None:
        # Unacknowledged messages are resent: delivery is at least once.
        await until(lambda: not self._proxy.is_used or not self._broker.is_awaiting(_CLIENT))
