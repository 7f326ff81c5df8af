"""The watermark header that the collector gives to out-of-order events."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.collect.conftest import collect, headers, read_topic
from tests.record_size_limit import limit_record_size

from millstream.collect.intake.failed import FailedStore
from millstream.collect.intake.watermark import Watermark
from millstream.collect.journal import Journal, JournalSettings
from millstream.collect.raw_message import RawMessage, encode
from millstream.log.record import Record
from millstream.log.settings import LogSettings
from millstream.log.topic_names import audit_topic, stream_topic
from millstream.pipeline.app import App
from millstream.runtime.home import Home
from millstream.values import event
from millstream.values.report import ProcessReport

NOW = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def reading(number: int, moment: datetime, **more: object) -> bytes:
    return json.dumps({"id": number, "at": moment.isoformat(), **more}).encode()


def watermarks(records: list[Record]) -> dict[int, str | None]:
    """The headers, by the event's number."""
    return {
        json.loads(record.value or b"")["id"]: headers(record).get(event.WATERMARK)
        for record in records
    }


def sensors(name: str) -> App:
    app = App(name)
    app.stream("readings", schema="id LONG, at TIMESTAMP", event_time="at", ahead="10 seconds")
    app.stream("kept", schema="id LONG, at TIMESTAMP NOT NULL", event_time="at", on_invalid="keep")
    return app


async def test_only_an_out_of_order_event_carries_the_watermark(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    app = sensors(app_name)
    async with collect(app, log_settings, tmp_path) as collector:
        await collector.post("readings", reading(1, at(10)))
        batch = [reading(2, at(5)), reading(3, at(10)), b'{"id": "x"}', reading(4, at(20))]
        await collector.post("readings", b"\n".join([*batch, reading(5, at(19.5))]))
        # A clock that is wrong moves nothing, one that is a little ahead no further than now.
        await collector.post("readings", reading(6, datetime(2099, 1, 1, tzinfo=UTC)))
        await collector.post("readings", reading(7, at(25)))
        await collector.post("readings", reading(8, datetime.now(UTC) + timedelta(seconds=8)))
        ce = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t"}
        await collector.post(
            "readings", reading(9, at(30)), headers={**ce, "ce-watermark": "99999999999999"}
        )
        await collector.post("kept", b'{"id": 1}')
        await collector.post("kept", reading(2, at(0)))
        records = await collector.logged("readings")
        counted = (await collector.http.get("/metrics")).text
        kept = watermarks(await collector.logged("kept"))
    found = watermarks(records)
    received = {json.loads(record.value or b"")["id"]: record.timestamp for record in records}
    assert found.pop(9) == str(received[8])
    ten, twenty = str(milliseconds(at(10))), str(milliseconds(at(20)))
    assert found == {1: None, 2: ten, 3: None, 4: None, 5: twenty, 6: None, 7: None, 8: None}
    assert kept == {1: None, 2: None}
    assert 'millstream_collect_out_of_order_total{stream="readings"} 3\n' in counted
    assert 'millstream_collect_future_total{stream="readings"} 1\n' in counted
    watermark = (
        f'millstream_collect_watermark_seconds{{stream="readings"}} {received[8] / 1000:.3f}'
    )
    assert watermark in counted
    longest = received[2] - milliseconds(at(5))
    skew = (
        f'millstream_collect_skew_seconds{{stream="readings",measure="max"}} {longest / 1000:.3f}'
    )
    assert skew in counted
    await _reported(log_settings, app_name, received[8])


async def test_the_sender_of_an_event_from_the_future_is_warned(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    app = sensors(app_name)
    soon, far = datetime.now(UTC) + timedelta(seconds=5), datetime(2099, 1, 1, tzinfo=UTC)
    async with collect(app, log_settings, tmp_path) as collector:
        fine = await collector.post("readings", reading(1, soon))
        # The fast path, ASGI (with a special header), and each kind of receipt.
        for query, more in (("", {}), ("", {"correlation-id": "x"}), ("?ack=local", {})):
            one = await collector.post(f"readings{query}", reading(2, far), headers=more)
            assert one.status_code == (202 if query else 200)
            assert one.json()["accepted"] == 1
            assert one.json()["future"] == [0]
            assert "1 of 1 events: at is more than 10 seconds after" in one.json()["warning"]
            assert "in no view" in one.json()["warning"]
        batch = [reading(3, at(0)), reading(4, far), b'{"id": "x"}', reading(5, far)]
        some = (await collector.post("readings", b"\n".join(batch))).json()
        counted = (await collector.http.get("/metrics")).text
    assert fine.json().keys() == {"accepted", "receipts", "rejected"}
    assert (some["accepted"], some["future"]) == (3, [1, 3])
    assert "2 of 4 events" in some["warning"]
    assert 'millstream_collect_future_total{stream="readings"} 5\n' in counted


async def _reported(log: LogSettings, app: str, watermark: int) -> None:
    reports = [
        msgspec.json.decode(record.value or b"", type=ProcessReport)
        for record in read_topic(log, audit_topic(app))
    ]
    counts = reports[-1].streams["readings"]
    assert (counts.watermark, counts.out_of_order, counts.future) == (watermark, 3, 1)
    assert counts.skew_ms is not None
    assert counts.skew_ms.count == 9
    assert counts.skew_ms.min < -70 * 365 * 86_400_000


async def test_the_watermark_restarts_with_the_entries_in_the_journal(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    app = sensors(app_name)
    async with collect(app, log_settings, tmp_path) as collector:
        await collector.post("readings", reading(1, at(60)))
    journal = await Journal.open(Home(tmp_path).journal / "0", JournalSettings())
    for number, seconds in ((2, 30), (3, 20)):
        left = RawMessage("readings", time.time_ns() // 1_000_000, reading(number, at(seconds)))
        await journal.append(encode(left))[1]
    await journal.close()
    async with collect(app, log_settings, tmp_path) as collector:
        await collector.post("readings", reading(4, at(25)))
        found = watermarks(await collector.logged("readings"))
    thirty = str(milliseconds(at(30)))
    assert found == {1: None, 2: None, 3: thirty, 4: thirty}


async def test_only_the_too_large_event_fails_and_keeps_its_watermark(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    app = sensors(app_name)
    async with collect(app, log_settings, tmp_path) as collector:
        await asyncio.to_thread(
            limit_record_size, log_settings, stream_topic(app_name, "readings"), 1500
        )
        moments = [at(60), at(30), at(40), at(70), at(50)]
        events = [reading(number, moment) for number, moment in enumerate(moments)]
        events[1] = reading(1, at(30), text="x" * 3000)
        answer = (await collector.post("readings", b"\n".join(events))).json()
        assert [each["index"] for each in answer["failed"]] == [1]
        await collector.post("readings", reading(5, at(65)))
        found = watermarks(await collector.logged("readings"))
    sixty, seventy = (str(milliseconds(at(seconds))) for seconds in (60, 70))
    assert found == {0: None, 2: sixty, 3: None, 4: seventy, 5: seventy}
    (failed,) = FailedStore(Home(tmp_path).failed).list()
    assert dict(failed.headers)[event.WATERMARK] == sixty.encode()


_EVENTS = st.lists(
    st.tuples(
        st.integers(0, 50),  # time until it is received
        st.integers(-200, 200),  # received minus event time
        st.booleans(),  # whether its event time is known
        st.booleans(),  # whether it is the last of its entry
    )
)


@given(_EVENTS)
def test_the_watermark_equals_that_of_all_sent_events(
    events: list[tuple[int, int, bool, bool]],
) -> None:
    watermark, received_at = Watermark(ahead_ms=100), 1000
    sent: list[tuple[int, int]] = []  # event time, received
    expected: list[int | None] = []
    found: list[int | None] = []
    entry: list[int | None] = []
    out_of_order = future = 0
    for waited, skew, is_known, is_last in events:
        moment = received_at - skew
        entry.append(moment if is_known else None)
        before = max((min(pair) for pair in sent), default=None)
        late = is_known and before is not None and moment < before
        expected.append(before if late else None)
        out_of_order += late
        if is_known and moment > received_at + 100:
            future += 1
        elif is_known:
            sent.append((moment, received_at))
        if is_last:
            told = watermark.advance(entry, received_at, frozenset())
            found += [told.get(index) for index in range(len(entry))]
            entry, received_at = [], received_at + waited
    told = watermark.advance(entry, received_at, frozenset())
    found += [told.get(index) for index in range(len(entry))]
    assert found == expected
    assert (watermark.out_of_order, watermark.future) == (out_of_order, future)
    if sent:
        assert watermark.at == max(min(pair) for pair in sent)
