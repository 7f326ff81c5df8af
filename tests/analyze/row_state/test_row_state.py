"""The life of rows: how they become final and corrected, and how they end."""

from __future__ import annotations

import json
import time
from typing import Any, Literal

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.analyze.plan import ViewPlan
from millstream.analyze.row_state.row_state import ENDS, End, Place, Return, RowStates
from millstream.analyze.row_state.row_state_writer import RowStateWriter
from millstream.log.connection import client_config
from millstream.log.consumer import bounds, read_range
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.store.views.table import Table

KEY = b'["x"]'


def view(
    topic: str = "t",
    window: str | None = None,
    keep_ms: int | None = 1000,
    output_mode: Literal["update", "append"] = "update",
) -> ViewPlan:
    return ViewPlan(
        name="v",
        inputs=("s",),
        reads=("s",),
        topic=topic,
        key=("k",),
        columns=(),
        window=window,
        mode="real_time",
        output_mode=output_mode,
        reason="",
        lineage="revision",
        doubt="",
        slots=1,
        keep_ms=keep_ms,
        generation="g",
        description="",
    )


def row(offset: int, timestamp: int, **value: Any) -> Record:
    return Record("t", 0, offset, timestamp, KEY, json.dumps(value).encode(), ())


def tombstone(offset: int, ends: int) -> Record:
    return Record("t", 0, offset, 0, KEY, None, ((ENDS, str(ends).encode()),))


def test_a_row_ends_that_long_after_its_last_change() -> None:
    lives = RowStates([view()])
    lives.apply(row(0, timestamp=0))
    lives.apply(row(1, timestamp=500))
    assert lives.ends(now=1499) == []
    assert lives.ends(now=1500) == [End(Place("t", 0, KEY), offset=1)]
    assert lives.ends(now=9999) == [], "it is on its way"


def test_a_window_ends_that_long_after_its_end_whenever_it_changed() -> None:
    lives = RowStates([view(window="w")])
    window = {"start": "1970-01-01T00:00:00.000000Z", "end": "1970-01-01T00:01:00.000000Z"}
    lives.apply(row(0, timestamp=99_999, w=window))
    assert lives.ends(now=60_999) == []
    assert len(lives.ends(now=61_000)) == 1


def test_a_row_that_ends_before_it_was_final_is_final_first() -> None:
    lives, table = RowStates([view(window="w")]), Table(keyed=True, stateful=True)
    window = {"start": "1970-01-01T00:00:00.000000Z", "end": "1970-01-01T00:01:00.000000Z"}
    lives.apply(row(0, timestamp=99_999, w=window, _revision=1))
    (end,) = lives.ends(now=100_000)
    assert end.last is not None
    final = Record("t", 0, 1, 100_000, KEY, end.last, ())
    lives.apply(final)
    change = table.apply(*final[1:6])
    assert change is not None
    assert change.row is not None
    assert change.row["_state"] == "final"
    lives.apply(tombstone(2, ends=end.offset))
    assert (lives.ends(now=200_000), lives.returns()) == ([], [])


def test_a_correction_of_a_row_that_has_ended_says_so_before_it_ends_anew() -> None:
    lives = RowStates([view(window="w")])
    lives.apply(row(0, timestamp=0, w=window(10), _revision=1))
    (end,) = lives.ends(now=11_000)
    lives.apply(Record("t", 0, 1, 11_000, KEY, end.last, ()))
    lives.apply(tombstone(2, ends=end.offset))
    lives.apply(row(3, timestamp=12_000, w=window(10), _revision=2))
    (end,) = lives.ends(now=12_000)
    assert claimed(lives, 12_000) == []
    assert end.last is not None, "or no ledger would hear of it"
    assert json.loads(end.last) == {"w": window(10), "_revision": 2, "_state": "corrected"}
    lives.apply(Record("t", 0, 4, 12_000, KEY, end.last, ()))
    lives.apply(tombstone(5, ends=end.offset))
    assert (lives.ends(now=20_000), lives.returns()) == ([], [])


def test_a_tombstone_that_did_not_get_through_is_due_again() -> None:
    lives = RowStates([view()])
    lives.apply(row(0, timestamp=0))
    (end,) = lives.ends(now=1000)
    lives.failed(end)
    assert lives.ends(now=1001) == [end]


def test_a_newer_row_that_a_tombstone_overtook_is_written_again() -> None:
    lives = RowStates([view()])
    lives.apply(row(0, timestamp=0))
    lives.ends(now=1000)
    lives.apply(row(1, timestamp=1001, n=2))
    lives.apply(tombstone(2, ends=0))
    (back,) = lives.returns()
    assert back == Return(Place("t", 0, KEY), b'{"n": 2,"_returned":2}', 1001)
    assert lives.returns() == []
    lives.apply(Record("t", 0, 3, 1001, KEY, back.value, ()))
    lives.apply(tombstone(4, ends=1))
    assert [each.value for each in lives.returns()] == [b'{"n": 2,"_returned":4}']


def test_a_server_shows_a_row_that_was_written_again() -> None:
    lives, table = RowStates([view()]), Table(keyed=True)

    def log(record: Record) -> None:
        lives.apply(record)
        table.apply(*record[1:6])

    log(row(0, timestamp=0, _revision=1))
    log(row(1, timestamp=900, _revision=2))
    log(tombstone(2, ends=0))
    assert list(table.rows) == []
    (back,) = lives.returns()
    log(Record("t", 0, 3, back.timestamp, KEY, back.value, ()))
    assert [each["_revision"] for each in table.rows.values()] == [2]
    log(row(4, timestamp=950, _revision=3))
    assert [each["_revision"] for each in table.rows.values()] == [3]


def test_a_row_that_is_back_already_is_not_written_once_more() -> None:
    lives = RowStates([view()])
    for record in (row(0, 0), row(1, 10), tombstone(2, ends=0), row(3, 10)):
        lives.apply(record)
    assert lives.returns() == []
    assert lives.ends(now=2000) == [End(Place("t", 0, KEY), offset=3)]


def test_a_row_that_comes_anew_after_its_end_ends_anew() -> None:
    lives = RowStates([view()])
    lives.apply(row(0, timestamp=0))
    lives.ends(now=1000)
    lives.apply(tombstone(1, ends=0))
    assert lives.returns() == []
    lives.apply(row(2, timestamp=5000))
    assert lives.ends(now=5999) == []
    assert lives.ends(now=6000) == [End(Place("t", 0, KEY), offset=2)]


def window(end: int) -> dict[str, str]:
    return {"start": "1970-01-01T00:00:00.000000Z", "end": f"1970-01-01T00:00:{end:02}.000000Z"}


def claimed(lives: RowStates, watermark: int) -> list[bytes]:
    """What is written at that watermark, after it was claimed."""
    lives.claimed |= lives.claims({"t": watermark})
    return [each.value for each in lives.statements({"t": watermark})]


def test_a_row_is_final_when_the_watermark_has_passed_its_window() -> None:
    lives = RowStates([view(window="w", keep_ms=None)])
    lives.apply(row(0, 0, w=window(10), _revision=1))
    assert claimed(lives, 9_999) == []
    (value,) = claimed(lives, 10_000)
    assert json.loads(value) == {"w": window(10), "_revision": 1, "_state": "final"}
    assert claimed(lives, 11_000) == [], "it is on its way"


def test_a_newer_row_of_a_window_that_was_final_is_corrected() -> None:
    lives = RowStates([view(window="w", keep_ms=None)])
    lives.apply(row(0, 0, w=window(10), _revision=1))
    (value,) = claimed(lives, 10_000)
    lives.apply(Record("t", 0, 1, 0, KEY, value, ()))
    lives.apply(row(2, 0, w=window(10), _revision=2))
    (value,) = claimed(lives, 10_000)
    assert json.loads(value) == {"w": window(10), "_revision": 2, "_state": "corrected"}


def test_a_row_that_appears_when_its_window_was_closed_corrects_that_there_was_none() -> None:
    lives = RowStates([view(window="w", keep_ms=None)])
    lives.apply(row(0, 0, w=window(10), _revision=1))
    claimed(lives, 10_000)
    other = Record("t", 0, 1, 0, b'["y"]', row(1, 0, w=window(9), _revision=1).value, ())
    lives.apply(other)
    assert [json.loads(each)["_state"] for each in claimed(lives, 10_000)] == ["corrected"]


def test_a_row_that_comes_once_and_late_is_final_and_corrects_nothing() -> None:
    lives = RowStates([view(window="w", keep_ms=None, output_mode="append")])
    for place, end in enumerate((10, 20)):  # each session's row comes long after its end
        key, session = b"%d" % end, row(2 * place, 0, w=window(end), _revision=1)
        lives.apply(session._replace(key=key))
        (value,) = claimed(lives, 100_000 + place)
        assert json.loads(value)["_state"] == "final"
        lives.apply(Record("t", 0, 2 * place + 1, 0, key, value, ()))


def test_what_cannot_change_any_more_is_not_held() -> None:
    lives = RowStates([view(window="w", keep_ms=None)])
    for number in range(100):
        value = row(number, number, w=window(10), _revision=1, text="x" * 1000).value
        lives.apply(Record("t", 0, number, number, f'["{number}"]'.encode(), value, ()))
    for number, value in enumerate(claimed(lives, 10_000)):
        lives.apply(Record("t", 0, 100 + number, 200, f'["{number}"]'.encode(), value, ()))
    assert (len(lives), lives.held_bytes) == (100, 0), "final: only how new it is"
    lives.forget({"t": 69_999}, {"t": 10**9})
    lives.forget({"t": 10**9}, {"t": 59_999})
    assert len(lives) == 100, "an event may come, or Spark repeat what it has not committed"
    lives.forget({"t": 70_000}, {"t": 60_100})
    assert len(lives) == 0
    lives.apply(row(200, 0, w=window(10), _revision=2))
    assert [json.loads(each)["_state"] for each in claimed(lives, 10**9)] == ["corrected"]


def test_what_has_ended_is_forgotten_when_spark_can_repeat_it_no_more() -> None:
    lives = RowStates([view()])
    lives.apply(row(0, timestamp=0, n="x" * 1000))
    lives.ends(now=1000)
    lives.apply(tombstone(1, ends=0))
    assert (len(lives), lives.held_bytes) == (1, 0)
    lives.forget({}, {"t": 60_000})
    assert len(lives) == 1
    lives.forget({}, {"t": 60_001})
    assert len(lives) == 0


def test_states_get_into_the_log_and_a_new_closer_goes_on_with_them(
    log_settings: LogSettings, app_name: str, eventually: Any
) -> None:
    topic = f"{app_name}.windows"
    admin = AdminClient(client_config(log_settings))
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(10)
    producer = Producer(client_config(log_settings, linger_ms=0))
    table, read = Table(keyed=True, stateful=True), 0

    def spark(revision: int, key: str = "x") -> None:
        value = {"w": window(10), "n": revision, "_revision": revision}
        producer.produce(topic, json.dumps(value), json.dumps([key]))
        assert producer.flush(10) == 0

    def becomes(watermark: int, *rows: tuple[int, str]) -> None:
        def is_so() -> bool:
            nonlocal read
            closer.tick({"v": watermark})
            end = bounds(log_settings, topic)[0][1]
            for record in read_range(log_settings, topic, 0, read, end):
                read = record.offset + 1
                table.apply(*record[1:6])
            return [(r["n"], r["_state"]) for r in table.rows.values()] == list(rows)

        eventually(is_so)

    views = [view(topic, window="w", keep_ms=None)]
    closer = RowStateWriter(log_settings, app_name, views)
    spark(1)
    becomes(9_000, (1, "provisional"))
    becomes(10_000, (1, "final"))
    spark(2)  # and the closer dies before it has seen it
    closer.close()
    closer = RowStateWriter(log_settings, app_name, views)
    becomes(10_000, (2, "corrected"))

    def is_stated() -> bool:  # in the log, where those who come later find it
        closer.tick({"v": 10_000})
        return bounds(log_settings, topic)[0][1] == 4

    eventually(is_stated)
    closer.close()
    closer = RowStateWriter(log_settings, app_name, views)
    spark(1, "late")  # there was no such row when its window was closed, before the restart
    becomes(10_000, (2, "corrected"), (1, "corrected"))
    closer.close()


def test_tombstones_reach_the_row_s_own_partition_and_survive_a_restart(
    log_settings: LogSettings, app_name: str, eventually: Any
) -> None:
    topic, now = f"{app_name}.kept", time.time_ns() // 1_000_000
    admin = AdminClient(client_config(log_settings))
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(10)
    producer = Producer(client_config(log_settings))
    for partition in range(3):
        key = f'["{partition}"]'
        producer.produce(topic, "{}", key, partition, timestamp=now - 5000 * partition)
    producer.flush(10)
    views = [view(topic, keep_ms=5000), view("ignored", keep_ms=None)]

    def records() -> list[tuple[int, str, bytes | None]]:
        consumer = Consumer(client_config(log_settings, group_id="t", enable_partition_eof=True))
        consumer.assign([TopicPartition(topic, number, 0) for number in range(3)])
        found: list[tuple[int, str, bytes | None]] = []
        ended = 0
        while ended < 3:
            message = consumer.poll(5)
            assert message is not None
            if message.error():
                ended += 1
                continue
            key = message.key()
            assert isinstance(key, bytes)
            found.append((message.partition() or 0, key.decode(), message.value()))
        consumer.close()
        return found

    for clock, gone in ((now, {1, 2}), (now, {1, 2}), (now + 5000, {0, 1, 2})):
        closer = RowStateWriter(log_settings, app_name, views, clock=lambda clock=clock: clock)  # type: ignore[misc]
        expected = {(number, f'["{number}"]') for number in gone}

        def ended(
            closer: RowStateWriter = closer, expected: set[tuple[int, str]] = expected
        ) -> bool:
            closer.tick()
            found = [(p, k) for p, k, value in records() if value is None]
            assert len(found) == len(set(found)), "a row ended twice"
            return set(found) == expected

        eventually(ended)
        closer.close()
