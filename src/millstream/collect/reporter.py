"""Reports the collector's counts to the audit topic each second, and so notices a Kafka outage."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.collect.intake.intake import Intake
from millstream.collect.journal import Journal
from millstream.connectors.interface import SourceReader
from millstream.errors import LogError
from millstream.log.producing.producer import Producer, RecordMetadata
from millstream.runtime.measure import Clock
from millstream.values.clock import now_ms
from millstream.values.report import JournalState, ProcessReport

_EVERY_SECONDS = 1.0
_AWAY_SECONDS = 5.0  # without an acknowledgement, Kafka counts as away

_log = logging.getLogger(__name__)


class Reporter:
    """Writes the audit reports. An acknowledged report or event shows that Kafka is up."""

    def __init__(
        self,
        intake: Intake,
        sources: Sequence[SourceReader],
        producer: Producer,
        topic: str,
        clock: Clock = time.monotonic,
    ) -> None:
        self._intake = intake
        self._sources = sources
        self._producer = producer
        self._topic = topic
        self._clock = clock
        self._started_at = now_ms()
        self._ended = False
        self._confirmed = clock()  # recovery has just read from Kafka

    async def run(self) -> None:
        """Report until cancelled."""
        journal = self._intake.journal
        _log.info(
            "collector %s has %d streams and %d sources; %d entries wait in its journal",
            journal.identity,
            len(self._intake.streams),
            len(self._sources),
            journal.pending_entries,
            extra={"collector": journal.identity, "start": journal.start},
        )
        while True:
            self.report()
            await asyncio.sleep(_EVERY_SECONDS)

    def end(self) -> None:
        """Write the last report of this start."""
        self._ended = True
        self.report()

    def report(self) -> None:
        """Send one report, without waiting for Kafka."""
        report = ProcessReport(
            tier="collect",
            instance=self._intake.collector,
            at=now_ms(),
            started_at=self._started_at,
            streams={name: stream.counts() for name, stream in self._intake.streams.items()},
            sources=[source.state for source in self._sources],
            journal=_state_of(self._intake.journal),
            ended=self._ended,
        )
        for name, counts in report.streams.items():
            if missing := counts.missing():
                _log.error(
                    "the counts of stream %s do not add up: %d events are missing",
                    name,
                    missing,
                    extra={"stream": name, "missing": missing},
                )
        try:
            future = self._producer.send(
                self._topic,
                msgspec.json.encode(report),
                key=self._intake.collector,
                timestamp=report.at,
            )
        except LogError as error:
            _log.warning("cannot report to %s: %s", self._topic, error)
        else:
            future.add_done_callback(self._on_answer)

    def health(self) -> tuple[str, dict[str, Any]]:
        """Why no event can be accepted, empty if it can; and the state of journal and Kafka.

        An outage of Kafka is no reason: events wait in the journal as long as it has room.
        """
        journal, reason = self._intake.journal, ""
        if journal.broken:
            reason = f"the journal accepts nothing: {journal.broken}"
        elif journal.is_full:
            reason = "the journal is full"
        details = {
            "journal": {
                "state": "broken" if journal.broken else "full" if reason else "open",
                "pending_entries": journal.pending_entries,
                "pending_bytes": journal.pending_bytes,
                "max_bytes": journal.max_bytes,
            },
            "kafka": {"state": "away" if self._is_kafka_away() else "up"},
        }
        return reason, details

    def _is_kafka_away(self) -> bool:
        confirmed = max(self._confirmed, self._intake.forwarder.answered_at)
        return self._clock() - confirmed > _AWAY_SECONDS

    def _on_answer(self, future: asyncio.Future[RecordMetadata]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._confirmed = self._clock()


def _state_of(journal: Journal) -> JournalState:
    return JournalState(
        entries=journal.pending_entries,
        bytes=journal.pending_bytes,
        stored_bytes=journal.stored_bytes,
        max_bytes=journal.max_bytes,
        broken=journal.broken,
        damage=journal.damage.counts(),
    )
