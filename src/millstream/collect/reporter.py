"""Tells the log each second what the collector counted, and so knows whether the log answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

import msgspec

from millstream.audit import Report
from millstream.collect.intake import Intake
from millstream.collect.interface import Reader
from millstream.errors import LogError
from millstream.log.producer import Delivery, Producer
from millstream.measure import Clock

_EVERY_SECONDS = 1.0
_READY_SECONDS = 5.0  # so long may a report be overdue before Kafka counts as away

_logger = logging.getLogger(__name__)


class Reporter:
    """Writes the audit's reports. One that Kafka confirmed is the proof that Kafka is there."""

    def __init__(
        self,
        intake: Intake,
        sources: Sequence[Reader],
        producer: Producer,
        topic: str,
        clock: Clock = time.monotonic,
    ) -> None:
        self._intake = intake
        self._sources = sources
        self._producer = producer
        self._topic = topic
        self._clock = clock
        self._started_at = _now()
        self._confirmed: float | None = None
        self._confirmed_once = asyncio.Event()

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            self.report()
            await asyncio.sleep(_EVERY_SECONDS)

    def report(self) -> None:
        """Write one report; it is on its way when this returns."""
        report = Report(
            tier="collect",
            instance=self._intake.collector,
            at=_now(),
            started_at=self._started_at,
            streams={name: lane.counts() for name, lane in self._intake.lanes.items()},
            sources=[source.state for source in self._sources],
        )
        try:
            future = self._producer.send(
                self._topic,
                msgspec.json.encode(report),
                key=self._intake.collector,
                timestamp=report.at,
            )
        except LogError as error:
            _logger.warning("cannot report to %s: %s", self._topic, error)
        else:
            future.add_done_callback(self._settled)

    async def first_confirmed(self) -> None:
        """Wait until Kafka has confirmed a report."""
        await self._confirmed_once.wait()

    def not_ready(self) -> str:
        """Why the collector cannot take in events now; empty if it can."""
        if self._confirmed is None:
            return "Kafka has not confirmed anything yet"
        overdue = self._clock() - self._confirmed
        if overdue > _READY_SECONDS:
            return f"Kafka has confirmed nothing for {overdue:.0f} s"
        return ""

    def _settled(self, future: asyncio.Future[Delivery]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._confirmed = self._clock()
            self._confirmed_once.set()


def _now() -> int:
    return time.time_ns() // 1_000_000
