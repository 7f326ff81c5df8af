"""Sends failed events to Kafka again, each once."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click
import msgspec
from confluent_kafka import KafkaError

from millstream.cli.dead_letters.sending import batches, print_failures, progress_bar
from millstream.log.producing.producer import DeliveryFailed, Producer
from millstream.log.search import Decision, Search
from millstream.log.topic_names import audit_topic
from millstream.log.topics import known_topics
from millstream.values import event
from millstream.values.clock import now_ms
from millstream.values.report import ProcessReport, StreamCounts

if TYPE_CHECKING:
    from millstream.collect.intake.failed import FailedEvent, FailedStore
    from millstream.log.record import Record
    from millstream.log.settings import LogSettings

_TIMEOUT = 30.0  # seconds for a record, or for a piece of the search
_COUNTED_AS = {"stream": "logged", "rejected": "rejected"}  # by the kind of topic


@dataclass(slots=True)
class Retried:
    """The result of a retry."""

    sent: int = 0
    there: int = 0  # in the log already
    left: dict[str, str] = field(default_factory=dict)  # why an event stays in the store, by id

    def show(self) -> None:
        print_failures(self.left)
        click.echo(
            f"{self.sent:,} sent, {len(self.left):,} failed again, "
            f"{self.there:,} were in the log already"
        )


def retry_events(log: LogSettings, store: FailedStore, events: Sequence[FailedEvent]) -> Retried:
    """Send what can be sent, and remove from the store what is in the log. Blocks.

    LogError if Kafka does not answer: the store is then unchanged.
    """
    result = Retried()
    if not events:
        return result
    sendable = _sendable(events, known_topics(log), result)
    there = _in_log(log, sendable)
    result.there = store.drop(one.id for one in sendable if event.identity(one.headers) in there)
    fresh = [one for one in sendable if event.identity(one.headers) not in there]
    if fresh:
        asyncio.run(_send_all(log, store, fresh, result))
    return result


def _sendable(
    events: Sequence[FailedEvent], topics: set[str], result: Retried
) -> list[FailedEvent]:
    """The events that can be sent; the others go to `result.left`."""
    sendable = []
    for one in events:
        if event.identity(one.headers) is None:
            # It failed before its body was split into events: it must not be sent as one event.
            result.left[one.id] = (
                "it is a whole body that was never split into events; send it to the collector "
                "again: "
                f"`millstream failed show {one.id} --raw` gives its bytes"
            )
        elif one.topic not in topics:
            result.left[one.id] = f"there is no topic {one.topic!r}"
        else:
            sendable.append(one)
    return sendable


def _in_log(log: LogSettings, events: Sequence[FailedEvent]) -> set[tuple[str, int, int] | None]:
    """The identities of events that are in the log; reads it from the oldest one's time on."""
    wanted = {event.identity(one.headers) for one in events}
    found: set[tuple[str, int, int] | None] = set()
    if not events:
        return found

    def look(record: Record) -> Decision:
        if (identity := event.identity(record.headers)) in wanted:
            found.add(identity)
        return Decision.CONTINUE

    search = Search(log, {one.topic for one in events}, min(one.timestamp for one in events))
    while not search.is_over:
        search.run(look, _TIMEOUT)
    return found


async def _send_all(
    log: LogSettings, store: FailedStore, events: Sequence[FailedEvent], result: Retried
) -> None:
    producer = Producer(log, patience=_TIMEOUT)
    try:
        with progress_bar("sending", len(events)) as advance:
            for batch in batches(events):
                taken = await _send(producer, batch, store, result)
                # Reported before they leave the store: after a kill in between, the next retry
                # finds them in the log, and does not report them again.
                await _report_moved(producer, taken)
                result.sent += await asyncio.to_thread(store.drop, [one.id for one in taken])
                advance(len(batch))
    finally:
        await producer.close(0.0)


async def _send(
    producer: Producer, batch: Sequence[FailedEvent], store: FailedStore, result: Retried
) -> list[FailedEvent]:
    """Send a batch; returns the events that Kafka confirmed. The others get the new reason."""
    answers = await asyncio.gather(*(_offer(producer, one) for one in batch))
    taken = []
    for one, answer in zip(batch, answers, strict=True):
        # Kafka refuses all records of a request in which one is too large: try it alone.
        if answer is not None and answer.code == KafkaError.MSG_SIZE_TOO_LARGE:
            answer = await _offer(producer, one)
        if answer is None:
            taken.append(one)
            continue
        result.left[one.id] = str(answer)
        record = (one.topic, one.key, one.value, one.headers, one.timestamp, str(answer))
        await asyncio.to_thread(store.put, *record)
    return taken


async def _offer(producer: Producer, one: FailedEvent) -> DeliveryFailed | None:
    """Send one event; returns why Kafka refused it, or None when the in-sync replicas have it."""
    headers = {name: text or b"" for name, text in one.headers}
    try:
        await producer.send(
            one.topic, one.value, key=one.key, timestamp=one.timestamp, headers=headers
        )
    except DeliveryFailed as refused:
        return refused
    return None


async def _report_moved(producer: Producer, events: Iterable[FailedEvent]) -> None:
    """Report to the audit that events which were counted as failed are in the log now."""
    moved = Counter(one.topic for one in events)
    now = now_ms()
    for topic, count in moved.items():
        app, kind, stream = topic.split(".")
        counts = StreamCounts(failed=-count)
        setattr(counts, _COUNTED_AS[kind], count)
        report = ProcessReport("command", f"retry-{uuid.uuid4().hex}", now, now, {stream: counts})
        await producer.send(audit_topic(app), msgspec.json.encode(report), key=report.instance)
