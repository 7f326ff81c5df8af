"""Reads the streams beside Spark: advances their clocks and writes late events to their topics.

Each late event is written exactly once: the late records and the offsets up to which streams were
read are one transaction. The counts are stored as the offsets' metadata. So a process that was
killed continues where it was, with the same counts.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

import msgspec
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from millstream.analyze.plan import ViewPlan
from millstream.analyze.watermarks.stream_clock import PartitionClock, least
from millstream.analyze.watermarks.tracked_stream import (
    LateEvent,
    StreamProgress,
    TrackedStream,
    streams_of,
)
from millstream.errors import LogError
from millstream.log.connection import client_config
from millstream.log.consumer import TRANSIENT_ERRORS
from millstream.log.settings import LogSettings
from millstream.pipeline.app import App
from millstream.values.clock import now_ms
from millstream.values.report import StreamCounts

_log = logging.getLogger(__name__)
_WAIT = 0.2
_BATCH = 2000
_COMMIT_EVERY = 1.0  # seconds
_SECONDS = 10.0
_CLOSE_SECONDS = 2.0
# Fields of a partition's clock that are stored with its offset; the names cannot change.
_STORED = ("began", "latest", "newest", "in_order", "late", "future", "broken", "lost")


class LateEvents:
    """A thread that reads the streams. Its answers are a fraction of a second old."""

    def __init__(
        self,
        log: LogSettings,
        app: App,
        views: Iterable[ViewPlan],
        idle: timedelta,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        views = list(views)
        self._log, self._app, self._clock = log, app, clock
        streams = [
            TrackedStream(app, stream, views, idle.total_seconds())
            for stream in app.streams.values()
            if stream.event_time is not None or _is_by_stream_time(views, stream.name)
        ]
        self._streams = {stream.topic: stream for stream in streams}
        self._streams_of = {view.name: set(streams_of(app, view.name)) for view in views}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure = ""  # why reading does not advance; empty while it does

    def start(self) -> None:
        if self._streams:
            self._thread = threading.Thread(target=self._run, name="late events", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread. The next one reads again what was not committed."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def counts(self) -> dict[str, StreamCounts]:
        """Per stream, its watermark and the counts of its events since the first start of all."""
        return {
            each.name: msgspec.structs.replace(
                each.counts, watermark=each.clock.watermark, error=self.failure
            )
            for each in self._streams.values()
        }

    def progress(self) -> dict[str, StreamProgress]:
        """Per stream, its watermark and the offsets that it belongs to."""
        return {each.name: each.progress() for each in self._streams.values()}

    def stream_watermark(self, view: str) -> int:
        """The least watermark of the view's streams that have one; 0: unknown."""
        names = self._streams_of.get(view, set())
        return least(s.clock.watermark for s in self._streams.values() if s.name in names)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                with _Connection(self._log, self._app.name, self._streams, self._clock) as reading:
                    while not self._closing.is_set():
                        reading.step()
                        if self.failure and reading.has_recovered():
                            self.failure = ""
            except KafkaException as error:
                cause = error.args[0]
                self.failure = cause.str()
                if cause.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH):
                    _log.error("another analyze writes the late events of %s now", self._app.name)
                    return
                self._pause(1.0)
            except LogError as error:
                self.failure = str(error)
                self._pause(5.0)
            except Exception as error:
                self.failure = str(error) or type(error).__name__
                _log.exception("cannot read the streams; watermarks do not advance; trying again")
                self._closing.wait(5.0)

    def _connect(self) -> _Connection:
        return _Connection(self._log, self._app.name, self._streams, self._clock)

    def _pause(self, seconds: float) -> None:
        _log.warning("watermarks do not advance: %s; trying again", self.failure)
        self._closing.wait(seconds)


class _Connection:
    """One connection to Kafka, from the committed offsets on. A KafkaException ends it."""

    def __init__(
        self,
        log: LogSettings,
        app: str,
        streams: Mapping[str, TrackedStream],
        clock: Callable[[], int],
    ) -> None:
        self._streams, self._clock = streams, clock
        group = f"{app}.timekeeper"  # Kafka stores the offsets under this name: it stays
        self._consumer = Consumer(
            client_config(
                log,
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                enable_partition_eof=True,
                fetch_queue_backoff_ms=50,
                queued_max_messages_kbytes=16 << 10,
            )
        )
        self._producer = Producer(client_config(log, transactional_id=group, linger_ms=5))
        self._moved: set[tuple[str, int]] = set()
        self._late: list[tuple[Message, TrackedStream, LateEvent]] = []
        self._committed = time.monotonic()
        self._late_partitions: dict[str, int] = {}
        self._has_committed = False

    def __enter__(self) -> _Connection:
        try:
            # First of all: after this, an older process that still runs can commit nothing.
            self._producer.init_transactions(_SECONDS * 3)
            self._resume()
        except BaseException:
            self._consumer.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def step(self) -> None:
        """Read what is there; commit if it is time."""
        messages = self._consumer.consume(_BATCH, _WAIT)
        now, wall = time.monotonic(), self._clock()
        for message in messages:
            topic, partition = message.topic() or "", message.partition() or 0
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    self._streams[topic].clock.partitions[partition].is_at_end = True
                elif error.code() not in TRANSIENT_ERRORS:
                    raise KafkaException(error)
                continue
            stream = self._streams[topic]
            late = stream.apply(message, stream.clock.partitions[partition], now, wall)
            self._moved.add((topic, partition))
            if late is not None:
                self._late.append((message, stream, late))
        if self._moved and (self._late or now - self._committed >= _COMMIT_EVERY):
            self._commit()
            self._committed = now
        self._advance(now)

    def has_recovered(self) -> bool:
        """Whether the work that failed before was done again, or there is none left."""
        return self._has_committed or all(
            partition.is_at_end
            for stream in self._streams.values()
            for partition in stream.clock.partitions.values()
        )

    def _resume(self) -> None:
        known = self._consumer.list_topics(timeout=_SECONDS).topics
        asked = [
            TopicPartition(topic, number)
            for topic in self._streams
            if topic in known
            for number in known[topic].partitions
        ]
        for topic, stream in self._streams.items():
            late = known.get(stream.late_topic)
            self._late_partitions[topic] = len(late.partitions) if late is not None else 0
        clocks: dict[str, dict[int, PartitionClock]] = {topic: {} for topic in self._streams}
        now, start = time.monotonic(), []
        for each in self._consumer.committed(asked, _SECONDS):
            if each.error is not None:
                raise KafkaException(each.error)
            clock = _decode_clock(each, now)
            if each.offset < 0:
                first, _ = self._consumer.get_watermark_offsets(
                    TopicPartition(each.topic, each.partition), _SECONDS
                )
                clock.position = clock.began = first
            clocks[each.topic][each.partition] = clock
            offset = clock.position or OFFSET_BEGINNING
            start.append(TopicPartition(each.topic, each.partition, offset))
        for topic, stream in self._streams.items():
            stream.clock.partitions = clocks[topic]
            stream.update_counts()
        self._consumer.assign(start)

    def _commit(self) -> None:
        for message, stream, _ in self._late:
            if not self._late_partitions[message.topic() or ""]:
                raise LogError(
                    f"there is no topic {stream.late_topic} for late events any more",
                    remedy="restart collect, analyze or serve: each creates it again",
                )
        self._producer.begin_transaction()
        for message, stream, late in self._late:
            topic, partition = message.topic() or "", message.partition() or 0
            self._producer.produce(
                stream.late_topic,
                message.value(),
                message.key(),
                partition % self._late_partitions[topic],
                timestamp=message.timestamp()[1],
                headers=[*(message.headers() or ()), *late.headers()],
            )
            self._producer.poll(0)
        offsets = [
            TopicPartition(topic, partition, clock.position, _encode_clock(clock))
            for topic, partition in self._moved
            for clock in [self._streams[topic].clock.partitions[partition]]
        ]
        group = self._consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction(offsets, group, _SECONDS)
        self._producer.commit_transaction(_SECONDS * 3)
        for topic in {topic for topic, _ in self._moved}:
            self._streams[topic].update_counts()
        self._late.clear()
        self._moved.clear()
        self._has_committed = True

    def _advance(self, now: float) -> None:
        for topic, stream in self._streams.items():
            clock = stream.clock
            idle = next(
                (n for n, p in clock.partitions.items() if p.is_idle(now, clock.idle)), None
            )
            is_there = idle is not None and self._is_there(topic, idle)
            clock.advance(now, self._clock(), is_log_there=is_there)

    def _is_there(self, topic: str, partition: int) -> bool:
        """Whether Kafka answers. If it does not, no events does not mean an idle stream."""
        try:
            self._consumer.get_watermark_offsets(TopicPartition(topic, partition), 1.0)
        except KafkaException:
            return False
        return True


def _is_by_stream_time(views: Iterable[ViewPlan], stream: str) -> bool:
    specs = [view.window_spec for view in views if view.window_spec is not None]
    return any(spec.time == "stream" and spec.stream == stream for spec in specs)


def _encode_clock(clock: PartitionClock) -> str:
    return json.dumps({name: getattr(clock, name) for name in _STORED}, separators=(",", ":"))


def _decode_clock(committed: TopicPartition, heard: float) -> PartitionClock:
    clock = PartitionClock(position=max(0, committed.offset), heard=heard)
    try:
        stored = msgspec.json.decode(committed.metadata or "{}", type=dict[str, int | None])
    except msgspec.MsgspecError:
        stored = {}
    for name in _STORED:
        if name in stored:
            setattr(clock, name, stored[name])
    return clock
