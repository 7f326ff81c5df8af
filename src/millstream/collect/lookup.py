"""Finds in the log the record that a receipt speaks of."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from millstream import event
from millstream.collect.asgi import Problem
from millstream.collect.lane import Lane
from millstream.log.consumer import bounds, read_range
from millstream.log.settings import LogSettings
from millstream.receipt import Receipt

_AT_ONCE = 4  # each takes a thread and a connection to Kafka for some 10 ms
_SECONDS = 5.0


class LogLookup:
    """Reads the record itself: what a receipt is answered with is what the log holds now."""

    def __init__(self, log: LogSettings) -> None:
        self._log = log
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def __call__(self, receipt: Receipt, lane: Lane) -> dict[str, Any]:
        """Where it is; Problem 404 if no such record was given out, 410 if retention took it."""
        async with self._turn:
            return await asyncio.to_thread(self._find, receipt, lane)

    def _find(self, receipt: Receipt, lane: Lane) -> dict[str, Any]:
        topic = lane.rejected_topic if receipt.rejected else lane.topic
        first, end = bounds(self._log, topic, _SECONDS).get(receipt.partition, (0, 0))
        if receipt.offset < first:
            raise Problem(410, f"the event of {receipt} was in {topic}; its retention has ended")
        if receipt.offset >= end:
            raise _unknown(receipt)
        records = read_range(
            self._log,
            topic,
            receipt.partition,
            receipt.offset,
            receipt.offset + 1,
            patience=_SECONDS,
        )
        for record in records:
            headers = dict(record.headers)
            if headers.get(event.SEQUENCE) == str(receipt.sequence).encode():
                moment = datetime.fromtimestamp(record.timestamp / 1000, UTC)
                where = {
                    "state": "rejected" if receipt.rejected else "logged",
                    "stream": receipt.stream,
                    "topic": topic,
                    "partition": record.partition,
                    "offset": record.offset,
                    "id": headers[event.ID].decode(),
                    "collected_at": moment.isoformat().replace("+00:00", "Z"),
                }
                reason = headers.get(event.REASON)
                return where if reason is None else {**where, "error": reason.decode()}
        raise _unknown(receipt)


def _unknown(receipt: Receipt) -> Problem:
    return Problem(404, f"no event in the log has the receipt {receipt}")
