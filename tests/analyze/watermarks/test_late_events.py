"""Stream clocks, and late events."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.analyze.run_late_events import MINUTE, declare, make_late_events
from tests.conftest import Eventually

from millstream.analyze.watermarks.event_time import time_reader
from millstream.analyze.watermarks.late_events import LateEvents
from millstream.analyze.watermarks.lateness import LatenessRule
from millstream.analyze.watermarks.stream_clock import PartitionClock, StreamClock
from millstream.analyze.windows.time_window import TimeWindowSpec
from millstream.log.connection import client_config
from millstream.log.consumer import bounds, read_range
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topic_names import late_topic, stream_topic
from millstream.log.topics import delete_topics
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.values.event import LATE_BY, LATE_REASON, LATE_VIEWS, WATERMARK

# A moment of today: Kafka would delete what its retention has passed.
NOW = time.time_ns() // 1_000_000 // MINUTE * MINUTE


def clock_of(*partitions: PartitionClock) -> StreamClock:
    return StreamClock(10.0, dict(enumerate(partitions)))


def partition(latest: int | None, heard: float = 0.0, is_at_end: bool = True) -> PartitionClock:
    return PartitionClock(latest=latest, heard=heard, is_at_end=is_at_end)


def test_a_stream_s_watermark_is_that_of_its_slowest_partition() -> None:
    clock = clock_of(partition(5_000), partition(3_000))
    assert clock.advance(1.0, wall=9_000, is_log_there=True) == 3_000


def test_an_idle_partition_is_left_out_and_the_watermark_never_goes_back() -> None:
    clock = clock_of(partition(5_000, heard=15.0), partition(3_000, heard=0.0))
    assert clock.advance(9.9, wall=99_000, is_log_there=True) == 3_000
    assert clock.advance(10.0, wall=99_000, is_log_there=True) == 5_000
    clock.partitions[1].advance(0, time=4_000, received=99_000, heard=16.0)
    assert clock.advance(16.0, wall=99_000, is_log_there=True) == 5_000


def test_a_partition_that_is_not_read_to_its_end_is_not_idle() -> None:
    clock = clock_of(partition(5_000, heard=100.0), partition(3_000, is_at_end=False))
    assert clock.advance(100.0, wall=999_000, is_log_there=True) == 3_000


def test_when_all_partitions_are_idle_time_advances_by_itself() -> None:
    clock = clock_of(partition(5_000), partition(None))
    assert clock.advance(30.0, wall=90_000, is_log_there=True) == 80_000


def test_no_partition_is_idle_while_kafka_does_not_answer() -> None:
    clock = clock_of(partition(5_000), partition(3_000))
    assert clock.advance(30.0, wall=90_000, is_log_there=False) == 3_000


def test_an_event_from_the_future_advances_the_watermark_only_to_when_it_was_received() -> None:
    clock = clock_of(PartitionClock())
    clock.partitions[0].advance(0, time=4_070_908_800_000, received=7_000, heard=1.0)
    assert clock.advance(1.0, wall=8_000, is_log_there=True) == 7_000


def test_stream_time_is_when_events_were_received() -> None:
    clock = clock_of(PartitionClock(), PartitionClock())
    clock.partitions[0].advance(0, time=1_000, received=7_000, heard=1.0)
    assert (clock.advance(1.0, wall=8_000, is_log_there=True), clock.received) == (0, 0)
    clock.partitions[1].advance(0, time=2_000, received=6_000, heard=1.0)
    assert (clock.advance(1.0, wall=8_000, is_log_there=True), clock.received) == (1_000, 6_000)


def test_an_event_is_late_for_the_windows_that_were_closed_when_it_came() -> None:
    spec = TimeWindowSpec("s", "event", {"s": 5}, 20, 10)
    rule = LatenessRule("v", spec, 5)
    assert rule.closed_windows(12, watermark=24) is None
    assert rule.closed_windows(12, watermark=25) == [(0, 20)]
    assert rule.closed_windows(12, watermark=35) == [(0, 20), (10, 30)]


def test_without_windows_an_event_is_late_by_its_own_time() -> None:
    rule = LatenessRule("v", None, 5)
    assert rule.closed_windows(12, watermark=16) is None
    assert rule.closed_windows(12, watermark=17) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('{"at":"1970-01-01T00:00:01.9999Z","x":[1]}', 1999),
        ('{"at":"1969-12-31T23:59:59.9999Z"}', -1),
        ('{"x":{"at":7},"at":"1970-01-01T02:00:00+02:00"}', 0),
        ('{"at":60}', 60_000),
        ('{"at":1790000000000}', 1_790_000_000_000),
        ('{"at":null}', None),
        ('{"at":"soon"}', None),
        ("{}", None),
        ("[1]", None),
        ("nonsense", None),
    ],
)
def test_only_the_event_time_of_a_record_is_read(value: str, expected: int | None) -> None:
    assert time_reader("at")(value.encode()) == expected


class InputTopic:
    """The pipeline's log, with events as collectors write them."""

    def __init__(self, log: LogSettings, name: str) -> None:
        self.log, self.app = log, declare(name)
        ensure_topics(self.app, log)
        self._producer = Producer(client_config(log, linger_ms=5))

    def event(
        self, number: int, at: int, watermark: int | None = None, received: int = NOW
    ) -> None:
        headers: list[Any] = [("ce_id", str(number))]
        if watermark is not None:
            headers.append((WATERMARK, str(watermark)))
        value = json.dumps({"id": number, "at": at})
        topic = stream_topic(self.app.name, "clicks")
        self._producer.produce(topic, value, "k", timestamp=received, headers=headers)

    def flush(self) -> None:
        assert self._producer.flush(10) == 0

    def late(self) -> list[Record]:
        topic = late_topic(self.app.name, "clicks")
        return [
            record
            for number, (first, end) in bounds(self.log, topic).items()
            if first < end
            for record in read_range(self.log, topic, number, first, end)
        ]


@pytest.fixture
def stage(log_settings: LogSettings, app_name: str) -> InputTopic:
    return InputTopic(log_settings, app_name)


@pytest.fixture
def late_events(stage: InputTopic) -> Iterator[LateEvents]:
    running = make_late_events(stage.log, stage.app, idle=600)
    running.start()
    yield running
    running.close()


def moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def counts(late_events: LateEvents) -> tuple[int, int, int, int]:
    found = late_events.counts()["clicks"]
    return found.in_order, found.late, found.future, found.broken


def test_events_that_are_in_no_window_are_in_the_late_topic_with_the_reason(
    stage: InputTopic, late_events: LateEvents, eventually: Eventually
) -> None:
    stage.event(1, NOW)
    stage.event(2, NOW - 2 * MINUTE, watermark=NOW - 1)  # behind, but its window is still open
    stage.event(3, NOW - 2 * MINUTE, watermark=NOW)
    stage.event(4, NOW + MINUTE)
    stage.event(5, NOW + MINUTE + 1)
    stage.flush()
    stage._producer.produce(stream_topic(stage.app.name, "clicks"), "{}", "k", timestamp=NOW)
    stage.flush()
    eventually(lambda: counts(late_events) == (3, 1, 1, 1))
    assert late_events.counts()["clicks"].watermark == NOW
    eventually(lambda: len(stage.late()) == 3)  # a commit is seen a moment after it is made
    late, future, broken = stage.late()
    given_ = dict(late.headers)
    assert (json.loads(late.value or b"")["id"], late.key, given_["ce_id"]) == (3, b"k", b"3")
    assert (given_[LATE_REASON], int(given_[LATE_BY])) == (b"late", 2 * MINUTE)
    assert json.loads(given_[LATE_VIEWS]) == {
        "per_minute": [[moment(NOW - 2 * MINUTE), moment(NOW - MINUTE)]]
    }
    assert dict(future.headers)[LATE_REASON] == b"future"
    assert int(dict(future.headers)[LATE_BY]) == MINUTE + 1
    assert dict(broken.headers)[LATE_REASON] == b"broken"


def test_an_event_from_the_future_does_not_end_the_windows_of_old_events(
    stage: InputTopic, late_events: LateEvents, eventually: Eventually
) -> None:
    stage.event(1, NOW - 30 * MINUTE)
    stage.event(2, NOW + 30 * MINUTE)
    stage.flush()
    eventually(lambda: counts(late_events) == (1, 0, 1, 0))
    assert late_events.counts()["clicks"].watermark == NOW - 30 * MINUTE


def test_after_a_kill_each_late_event_is_written_once_and_counts_continue(
    stage: InputTopic, log_settings: LogSettings, eventually: Eventually
) -> None:
    chance, sent = random.Random(5), 0
    command = (sys.executable, "-m", "tests.analyze.run_late_events")
    for _ in range(3):
        process = subprocess.Popen(
            (*command, log_settings.bootstrap, stage.app.name),
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"reading\n"
            until = time.monotonic() + chance.uniform(0.3, 1.0)
            while time.monotonic() < until:
                stage.event(sent, NOW - 5 * MINUTE, watermark=NOW)
                stage.event(sent + 1, NOW)
                sent += 2
                stage.flush()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    last = make_late_events(stage.log, stage.app)
    last.start()
    try:
        eventually(lambda: counts(last) == (sent // 2, sent // 2, 0, 0))
    finally:
        last.close()
    eventually(lambda: len(stage.late()) >= sent // 2)
    ids = [json.loads(record.value or b"")["id"] for record in stage.late()]
    assert ids == list(range(0, sent, 2))


def test_a_new_process_shuts_out_an_old_one(stage: InputTopic, eventually: Eventually) -> None:
    old, new = make_late_events(stage.log, stage.app), make_late_events(stage.log, stage.app)
    old.start()
    stage.event(1, NOW)
    stage.flush()
    eventually(lambda: counts(old) == (1, 0, 0, 0))
    new.start()
    eventually(lambda: counts(new) == (1, 0, 0, 0))
    stage.event(2, NOW - 5 * MINUTE, watermark=NOW)
    stage.flush()
    eventually(lambda: counts(new) == (1, 1, 0, 0))
    eventually(lambda: old.failure)
    old.close()
    new.close()
    eventually(lambda: len(stage.late()) == 1)


def test_a_missing_late_topic_is_reported_until_it_is_created_again(
    stage: InputTopic, late_events: LateEvents, eventually: Eventually
) -> None:
    stage.event(1, NOW)
    stage.flush()
    eventually(lambda: counts(late_events) == (1, 0, 0, 0))
    delete_topics(stage.log, [late_topic(stage.app.name, "clicks")])
    stage.event(2, NOW - 5 * MINUTE, watermark=NOW)
    stage.flush()
    why = f"there is no topic {late_topic(stage.app.name, 'clicks')} for late events any more"
    eventually(lambda: late_events.counts()["clicks"].error.startswith(why), seconds=120)
    ensure_topics(stage.app, stage.log)
    eventually(lambda: counts(late_events) == (1, 1, 0, 0), seconds=60)
    eventually(lambda: late_events.counts()["clicks"].error == "")


def test_a_pipeline_without_event_times_reads_no_streams(
    log_settings: LogSettings, app_name: str
) -> None:
    app = App(app_name)
    app.stream("plain", schema="id LONG")
    idle = make_late_events(log_settings, app)
    idle.start()
    assert idle.counts() == {}
    idle.close()
