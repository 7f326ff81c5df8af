"""Reads the streams beside Spark: how far their time is, and which events no window takes any more.

What is late goes to the stream's late topic exactly once: the records and how far was read are one
transaction, with what was counted until then in the offset's own note. So a process that is killed
goes on where it was, with the same counts.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
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
from millstream.analyze.watermarks.event_time import time_reader
from millstream.analyze.watermarks.stream_clock import PartitionClock, StreamClock, least
from millstream.analyze.windows.window_assignment import Window, lateness_rules, missed, windows
from millstream.errors import LogError
from millstream.log.connection import client_config
from millstream.log.consumer import TRANSIENT_ERRORS
from millstream.log.settings import LogSettings
from millstream.log.topic_names import late_topic, stream_topic
from millstream.pipeline.app import App
from millstream.pipeline.model import Stream
from millstream.syntax.duration import milliseconds
from millstream.values.clock import now_ms, to_iso
from millstream.values.event import LATE_BY, LATE_REASON, LATE_VIEWS, WATERMARK
from millstream.values.report import StreamCounts

_log = logging.getLogger(__name__)
_WAIT = 0.2
_BATCH = 2000
_COMMIT_EVERY = 1.0  # seconds
_SECONDS = 10.0
_PATIENCE = 2.0  # for its end
_NOTED = ("began", "latest", "newest", "in_order", "late", "future", "broken", "lost")


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """A stream's watermark, and the log as it was then."""

    watermark: int
    received: int  # the same by stream time
    newest: int  # when the newest event was received; milliseconds
    positions: dict[str, int]  # partition → the next offset
    topic: str


class LateEvents:
    """A thread; its answers are of its last look, a fraction of a second ago."""

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
        self._streams = {
            stream_topic(app.name, stream.name): _Stream(app, stream, views, idle.total_seconds())
            for stream in app.streams.values()
            if stream.event_time is not None or _is_by_stream_time(views, stream.name)
        }
        self._of_view = {view.name: set(streams_of(app, view.name)) for view in views}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure = ""  # why it does not go on, if it does not

    def start(self) -> None:
        if self._streams:
            self._thread = threading.Thread(target=self._run, name="timekeeper", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End it; what was read since the last commit is read again by the next one."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE)

    def counts(self) -> dict[str, StreamCounts]:
        """Per stream, its watermark and what became of its events, since the first start of all."""
        return {
            each.name: msgspec.structs.replace(
                each.told, watermark=each.clock.watermark, error=self.failure
            )
            for each in self._streams.values()
        }

    def reached(self) -> dict[str, StreamProgress]:
        """Per stream, how far it is, and where in the log that is."""
        return {
            each.name: StreamProgress(
                each.clock.watermark,
                each.clock.received,
                max((p.newest for p in each.clock.partitions.values()), default=0),
                {str(n): p.position for n, p in each.clock.partitions.items()},
                topic,
            )
            for topic, each in self._streams.items()
        }

    def view_watermark(self, view: str) -> int:
        """The least of the view's streams that tell; 0: unknown."""
        names = self._of_view.get(view, set())
        return least(s.clock.watermark for s in self._streams.values() if s.name in names)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                with _Session(self._log, self._app.name, self._streams, self._clock) as session:
                    while not self._closing.is_set():
                        session.turn()
                        if self.failure and session.is_well():
                            self.failure = ""
            except KafkaException as error:
                cause = error.args[0]
                self.failure = cause.str()
                if cause.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH):
                    _log.error("another analyze keeps the time of %s now", self._app.name)
                    return
                _log.warning("watermarks stand still: %s; trying again", cause.str())
                self._closing.wait(1.0)
            except LogError as error:
                self.failure = str(error)
                _log.warning("watermarks stand still: %s; trying again", error)
                self._closing.wait(5.0)
            except Exception as error:
                self.failure = str(error) or type(error).__name__
                _log.exception("watermarks stand still; trying again")
                self._closing.wait(5.0)


class _Stream:
    """What is known of one stream, and how its events are judged."""

    def __init__(self, app: App, stream: Stream, views: list[ViewPlan], idle: float) -> None:
        self.name = stream.name
        self.clock = StreamClock(idle)
        self.told = StreamCounts()  # as of the last commit
        self.late_topic = late_topic(app.name, stream.name)
        self._read = time_reader(stream.event_time) if stream.event_time is not None else None
        self._judging = lateness_rules(views, stream.name)
        self._ahead = milliseconds(stream.ahead)
        self._all = {
            view.name: next((each.spec for each in self._judging if each.view == view.name), None)
            for view in views
            if stream.name in streams_of(app, view.name)
        }

    def tell(self) -> None:
        """What was counted is committed."""
        total, partitions = self.clock.total, self.clock.partitions
        self.told = StreamCounts(
            in_order=total("in_order"),
            late=total("late"),
            future=total("future"),
            broken=total("broken"),
            lost=total("lost"),
            read={str(number): each.position for number, each in partitions.items()},
            read_from={str(number): each.began for number, each in partitions.items()},
        )

    def judge(self, message: Message, clock: PartitionClock, now: float, wall: int) -> _Late | None:
        """Take an event into account; what is to be written of it, if no view takes it."""
        received = message.timestamp()[1]
        offset = message.offset() or 0
        known = min(received, wall)  # a collector's clock may be ahead, too
        if self._read is None:
            clock.saw(offset, known, known, now)
            clock.in_order += 1
            return None
        at = self._read(message.value())
        late = self._late(at, received, message)
        # What is set aside tells no time, as it tells the collector none: in old events that are
        # sent now it would end every window at once.
        told = None if late is not None and late.reason == "future" else at
        clock.saw(offset, told, known, now)
        match late.reason if late is not None else "":
            case "late":
                clock.late += 1
            case "future":
                clock.future += 1
            case "broken":
                clock.broken += 1
            case _:
                clock.in_order += 1
        return late

    def _late(self, at: int | None, received: int, message: Message) -> _Late | None:
        if at is None:
            return _Late("broken", 0, {each.view: [] for each in self._judging})
        if at > received + self._ahead:
            found = {
                name: windows(spec, at) if spec is not None else []
                for name, spec in self._all.items()
            }
            return _Late("future", at - received, found)
        if not self._judging or (watermark := _watermark(message)) is None:
            return None
        late: dict[str, list[Window]] = {}
        for of in self._judging:
            if (gone := missed(of, at, watermark)) is not None:
                late.setdefault(of.view, []).extend(gone)
        return _Late("late", watermark - at, late) if late else None


@dataclass(frozen=True, slots=True)
class _Late:
    """Why an event is in no view, or not in all."""

    reason: str
    by_ms: int
    views: Mapping[str, list[Window]]

    def headers(self) -> list[tuple[str, bytes]]:
        named = {
            view: [[_moment(start), _moment(end)] for start, end in gone]
            for view, gone in self.views.items()
        }
        return [
            (LATE_REASON, self.reason.encode()),
            (LATE_BY, str(self.by_ms).encode()),
            (LATE_VIEWS, json.dumps(named, separators=(",", ":")).encode()),
        ]


class _Session:
    """One connection to Kafka, from what was committed on. KafkaException ends it."""

    def __init__(
        self,
        log: LogSettings,
        app: str,
        streams: Mapping[str, _Stream],
        clock: Callable[[], int],
    ) -> None:
        self._streams, self._clock = streams, clock
        group = f"{app}.timekeeper"
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
        self._late: list[tuple[Message, _Stream, _Late]] = []
        self._committed = time.monotonic()
        self._late_partitions: dict[str, int] = {}
        self._has_committed = False

    def __enter__(self) -> _Session:
        try:
            # First this: an older one of us, should it still be there, can commit nothing after it.
            self._producer.init_transactions(_SECONDS * 3)
            self._resume()
        except BaseException:
            self._consumer.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def turn(self) -> None:
        """Read what is there; commit when it is time."""
        messages = self._consumer.consume(_BATCH, _WAIT)
        now, wall = time.monotonic(), self._clock()
        for message in messages:
            if (error := message.error()) is not None:
                self._heed(error, message)
                continue
            topic, partition = message.topic() or "", message.partition() or 0
            stream = self._streams[topic]
            late = stream.judge(message, stream.clock.partitions[partition], now, wall)
            self._moved.add((topic, partition))
            if late is not None:
                self._late.append((message, stream, late))
        if self._moved and (self._late or now - self._committed >= _COMMIT_EVERY):
            self._commit()
            self._committed = now
        self._advance(now)

    def is_well(self) -> bool:
        """Whether what the one before failed at has been done again, or is not to be done."""
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
            clock = _restored(each, now)
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
            stream.tell()
        self._consumer.assign(start)

    def _heed(self, error: KafkaError, message: Message) -> None:
        topic, partition = message.topic() or "", message.partition() or 0
        if error.code() == KafkaError._PARTITION_EOF:
            self._streams[topic].clock.partitions[partition].is_at_end = True
        elif error.code() not in TRANSIENT_ERRORS:
            raise KafkaException(error)

    def _commit(self) -> None:
        for message, stream, _ in self._late:
            if not self._late_partitions[message.topic() or ""]:
                raise LogError(
                    f"there is no topic {stream.late_topic} for late events any more",
                    remedy="restart collect, analyze or serve: each makes it again",
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
            TopicPartition(topic, partition, clock.position, _note(clock))
            for topic, partition in self._moved
            for clock in [self._streams[topic].clock.partitions[partition]]
        ]
        group = self._consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction(offsets, group, _SECONDS)
        self._producer.commit_transaction(_SECONDS * 3)
        for topic in {topic for topic, _ in self._moved}:
            self._streams[topic].tell()
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
        """Whether Kafka answers: or silence would be taken for the streams' own."""
        try:
            self._consumer.get_watermark_offsets(TopicPartition(topic, partition), 1.0)
        except KafkaException:
            return False
        return True


def streams_of(app: App, view: str) -> Iterator[str]:
    """The streams that a view is made of, through other views too."""
    for name in app.views[view].inputs if view in app.views else ():
        if name in app.streams:
            yield name
        else:
            yield from streams_of(app, name)


def _is_by_stream_time(views: Iterable[ViewPlan], stream: str) -> bool:
    return any(
        view.window_spec is not None
        and view.window_spec.time == "stream"
        and view.window_spec.stream == stream
        for view in views
    )


def _watermark(message: Message) -> int | None:
    headers: list[tuple[str, bytes]] = message.headers() or []  # type: ignore[assignment]
    for name, value in headers:
        if name == WATERMARK:
            try:
                return int(value)
            except ValueError:
                return None
    return None


def _note(clock: PartitionClock) -> str:
    return json.dumps({name: getattr(clock, name) for name in _NOTED}, separators=(",", ":"))


def _restored(committed: TopicPartition, heard: float) -> PartitionClock:
    clock = PartitionClock(position=max(0, committed.offset), heard=heard)
    try:
        noted = msgspec.json.decode(committed.metadata or "{}", type=dict[str, int | None])
    except msgspec.MsgspecError:
        noted = {}
    for name in _NOTED:
        if name in noted:
            setattr(clock, name, noted[name])
    return clock


def _moment(milliseconds: int) -> str:
    try:
        return to_iso(milliseconds)
    except (OverflowError, ValueError, OSError):  # beyond the year 9999
        return str(milliseconds)
