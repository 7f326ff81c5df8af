"""A sender may retry without an answer: the log has each event once."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.collect.collector_state import balance, counted, is_at_rest, leave_in_journal
from tests.collect.conftest import Collector, click, collect, headers, shop, until

from millstream.collect.dedup import id_writer
from millstream.collect.dedup.id_writer import IdWriter
from millstream.collect.raw_message import RawMessage
from millstream.connectors import KafkaTopicSource
from millstream.log.producing.producer import Producer, RecordMetadata
from millstream.log.settings import LogSettings
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics

_NOW = time.time_ns() // 1_000_000
BATCH = {"content-type": "application/cloudevents-batch+json"}


def keyed(key: str) -> dict[str, str]:
    return {"idempotency-key": key}


def cloud_event(name: str, number: int | str, source: str = "/till") -> dict[str, object]:
    data = {"id": number, "at": "2026-11-16T12:00:00Z"}
    return {"specversion": "1.0", "id": name, "source": source, "type": "click", "data": data}


def batch(*events: dict[str, object]) -> bytes:
    return json.dumps(events).encode()


async def identities(collector: Collector, response: httpx.Response) -> list[tuple[Any, ...]]:
    """The events of the receipts in an answer."""
    found = []
    for receipt in response.json()["receipts"]:
        told = (await collector.http.get(f"/v1/receipts/{receipt}")).json()
        found.append((told["collector"], told["sequence"], told["index"]))
    return found


async def test_a_retry_gets_the_answer_of_the_first_request(collector: Collector) -> None:
    body = b"\n".join([click(1), b'{"id": "x", "at": 1}', click(3)])
    first = await collector.post("clicks", body, headers=keyed("a"))
    again = await collector.post("clicks", body, headers=keyed("a"))
    local = await collector.http.post(
        "/v1/streams/clicks?ack=local", content=body, headers=keyed("a")
    )
    assert [r.status_code for r in (first, again, local)] == [200, 200, 202]
    assert first.json()["receipts"] == again.json()["receipts"] == local.json()["receipts"]
    assert first.json()["rejected"] == again.json()["rejected"]
    assert "duplicates" not in first.json()
    assert again.json()["duplicates"] == [0, 2]
    assert [record.value for record in await collector.logged("clicks")] == [click(1), click(3)]
    assert len(await collector.rejected("clicks")) == 1
    assert await counted(collector, "duplicates_total") == 6
    assert await balance(collector) == 0


async def test_each_event_of_a_batch_is_recognised_by_its_source_and_id(
    collector: Collector,
) -> None:
    before = await collector.post(
        "clicks", batch(cloud_event("a", 1), cloud_event("b", 2)), headers=BATCH
    )
    body = batch(
        cloud_event("b", 2),
        cloud_event("c", 3),
        cloud_event("a", 1, source="/other till"),
        cloud_event("d", "no number"),
        cloud_event("c", 3),
        cloud_event("d", 4),
    )
    response = await collector.post("clicks", body, headers=BATCH)
    answer = response.json()
    assert (response.status_code, answer["accepted"]) == (200, 5)
    assert answer["duplicates"] == [0, 4]
    assert [bad["index"] for bad in answer["rejected"]] == [3]
    assert answer["receipts"][0] == before.json()["receipts"][1]
    assert answer["receipts"][3] == answer["receipts"][1]
    keys = [record.key for record in await collector.logged("clicks")]
    assert keys == [b"1", b"2", b"3", b"1", b"4"]
    assert await balance(collector) == 0
    # One event alone, in headers.
    alone = {"ce-specversion": "1.0", "ce-id": "c", "ce-source": "/till", "ce-type": "click"}
    response = await collector.post("clicks", click(3), headers=alone)
    assert response.json()["receipts"] == [answer["receipts"][1]]
    assert len(await collector.logged("clicks")) == 5


async def test_concurrent_retries_count_as_one(collector: Collector) -> None:
    async def send(number: int) -> httpx.Response:
        ack = "log" if number % 2 else "local"
        return await collector.http.post(
            f"/v1/streams/clicks?ack={ack}", content=click(1), headers=keyed("a")
        )

    responses = await asyncio.gather(*(send(number) for number in range(20)))
    assert {response.status_code for response in responses} == {200, 202}
    found = {identity for r in responses for identity in await identities(collector, r)}
    assert len(found) == 1
    assert sum("duplicates" in response.json() for response in responses) == 19
    await until(lambda: is_at_rest(collector))
    assert len(await collector.logged("clicks")) == 1
    assert await balance(collector) == 0


async def test_a_key_that_comes_with_another_body_gets_the_first_answer(
    collector: Collector,
) -> None:
    body = b"\n".join([click(1), click(2)])
    first = await collector.post("clicks", body, headers=keyed("a"))
    other = await collector.post("clicks", click(3), headers=keyed("a"))
    assert other.status_code == 200
    assert other.json()["receipts"] == first.json()["receipts"]
    assert "another body" in other.json()["detail"]
    invalid = await collector.post("clicks", b"[{}, {}]", headers=keyed("a"))
    assert invalid.status_code == 200
    assert invalid.json()["receipts"] == first.json()["receipts"]
    assert "another body" in invalid.json()["detail"]
    assert len(await collector.logged("clicks")) == 2
    assert await collector.rejected("clicks") == []


async def test_a_refused_or_rejected_request_may_be_corrected_and_sent_again(
    collector: Collector,
) -> None:
    assert (await collector.post("clicks", b"{}", headers=keyed("a"))).status_code == 422
    unreadable = keyed("a") | {"content-encoding": "gzip"}
    assert (await collector.post("clicks", b"no gzip", headers=unreadable)).status_code == 400
    mended = await collector.post("clicks", click(1), headers=keyed("a"))
    assert (mended.status_code, mended.json()["accepted"]) == (200, 1)
    assert "duplicates" not in mended.json()


async def test_an_id_is_accepted_again_after_its_window(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    app = shop(app_name)
    app.stream("brief", schema="id LONG", dedup="1 second")
    app.stream("loose", schema="id LONG", delivery="at_least_once")
    async with collect(app, log_settings, tmp_path) as collector:
        answers = 0

        async def is_new() -> bool:
            nonlocal answers
            answers += 1
            response = await collector.post("brief", b'{"id": 1}', headers=keyed("a"))
            return "duplicates" not in response.json()

        assert await is_new()
        await until(is_new)
        assert answers > 2
        assert len(await collector.logged("brief")) == 2
        for _ in range(2):  # nothing of that kind is promised there
            assert (await collector.post("loose", b"{}", headers=keyed("a"))).status_code == 200
        assert len(await collector.logged("loose")) == 2


async def test_a_retry_is_recognised_after_a_restart_and_by_another_collector(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    body = batch(cloud_event("a", 1), cloud_event("b", 2))
    app = shop(app_name)
    async with collect(app, log_settings, tmp_path / "one") as one:
        first = await one.post("clicks", body, headers=BATCH | keyed("k"))
    async with (
        collect(app, log_settings, tmp_path / "one") as one,
        collect(app, log_settings, tmp_path / "two") as two,
    ):
        wanted = await identities(one, first)
        for collector, given in ((one, BATCH), (two, BATCH), (two, BATCH | keyed("k"))):
            again = await collector.post("clicks", body, headers=given)
            assert again.status_code == 200
            assert again.json()["duplicates"] == [0, 1]
            assert await identities(collector, again) == wanted
        # And what the other took in just now: its id has travelled before it was answered.
        await two.post("clicks", click(3), headers=keyed("new"))

        async def is_known() -> bool:
            response = await one.post("clicks", click(3), headers=keyed("new"))
            return "duplicates" in response.json()

        await until(is_known)
        keys = [record.key for record in await one.logged("clicks")]
        doubled = await counted(one, "ids_doubled_total", "")
    assert len(keys) == 3 + doubled


async def test_a_journal_left_by_a_crash_is_no_duplicate_of_itself(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    """The entry is on disk, its id is nowhere else, and its sender has no answer."""
    await leave_in_journal(tmp_path, RawMessage("clicks", _NOW, click(1), idempotency_key="a"))
    async with collect(shop(app_name), log_settings, tmp_path) as collector:
        again = await collector.post("clicks", click(1), headers=keyed("a"))
        assert again.json()["duplicates"] == [0]
        [(_, sequence, index)] = await identities(collector, again)
        assert (sequence, index) == (1, 0)
        assert len(await collector.logged("clicks")) == 1
        assert await balance(collector) == 0


async def test_events_that_another_collector_accepted_during_the_crash_are_not_sent_again(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    events = batch(cloud_event("a", 1), cloud_event("b", 2))
    await leave_in_journal(
        tmp_path / "one",
        RawMessage("clicks", _NOW, click(7), idempotency_key="k"),
        RawMessage("clicks", _NOW, events, BATCH["content-type"]),
        # As it was decided before the crash; the id of its first event is not known any more.
        RawMessage(
            "clicks",
            _NOW,
            events.replace(b'"/till"', b'"/x"'),
            BATCH["content-type"],
            duplicates=(0,),
        ),
    )
    app = shop(app_name)
    async with collect(app, log_settings, tmp_path / "two") as two:
        first = await two.post("clicks", click(7), headers=keyed("k"))
        await two.post("clicks", batch(cloud_event("b", 2)), headers=BATCH)
        async with collect(app, log_settings, tmp_path / "one") as one:
            await until(lambda: is_at_rest(one))
            keys = [record.key for record in await one.logged("clicks")]
            assert keys == [b"7", b"2", b"1", b"2"]
            assert await counted(one, "duplicates_total") == 3
            assert await balance(one) == 0
            again = await one.post("clicks", click(7), headers=keyed("k"))
            assert await identities(one, again) == await identities(two, first)


async def test_duplicates_of_a_source_are_recognised_too(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    there = App(f"{app_name}x")
    there.stream("elsewhere", schema="id LONG")
    await asyncio.to_thread(ensure_topics, there, log_settings)
    topic = f"{there.name}.stream.elsewhere"
    producer = Producer(log_settings)

    async def send(*numbers: int) -> None:
        for number in numbers:
            given = {"ce_specversion": "1.0", "ce_id": str(number), "ce_source": "/till"}
            await producer.send(topic, click(number), headers={**given, "ce_type": "click"})

    await send(1, 2, 1, 3)
    app = shop(app_name, KafkaTopicSource(log_settings.bootstrap, topic))
    async with collect(app, log_settings, tmp_path) as collector:
        await until(lambda: _has_counted(collector, 4))
        await send(3)
        await until(lambda: _has_counted(collector, 5))
        assert [r.key for r in await collector.logged("clicks")] == [b"1", b"2", b"3"]
        assert await balance(collector) == 0
    # What was a duplicate is read over for good: it does not come again.
    await send(4)
    await producer.close()
    async with collect(app, log_settings, tmp_path) as collector:
        await until(lambda: _has_counted(collector, 1))
        last = (await collector.logged("clicks"))[-1]
        assert "ce_id" in headers(last)
        assert last.key == b"4"
        assert await counted(collector, "duplicates_total") == 0


async def test_more_ids_than_fit_are_forgotten_and_counted(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    async with collect(shop(app_name), log_settings, tmp_path, dedup_ids=10) as collector:
        events = [cloud_event(str(number), number) for number in range(100)]
        await collector.post("clicks", batch(*events), headers=BATCH)
        held = await counted(collector, "ids", "")
        assert held <= 10
        forgotten = await counted(collector, "ids_forgotten_total", "")
        assert forgotten == 100 - held
        answer = (await collector.post("clicks", batch(*events[-5:]), headers=BATCH)).json()
        assert answer["duplicates"] == [0, 1, 2, 3, 4]


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Ids are not written to their topic before this is set."""
    go_on, write = asyncio.Event(), IdWriter._write_record

    async def write_later(writer: IdWriter, value: bytes) -> RecordMetadata:
        await go_on.wait()
        return await write(writer, value)

    monkeypatch.setattr(IdWriter, "_write_record", write_later)
    return go_on


async def test_no_event_is_sent_before_its_id_is_written(
    held_up: asyncio.Event, collector: Collector
) -> None:
    url = "/v1/streams/clicks?ack=local"
    assert (await collector.http.post(url, content=click(1), headers=keyed("a"))).status_code == 202
    assert (await collector.http.post(url, content=click(2))).status_code == 202
    assert await counted(collector, "pending") == 2
    assert await counted(collector, "pending_bytes", "") == 0  # on disk, not under way
    assert await collector.logged("clicks") == []
    # A retry that wants the log waits for the first one.
    retry = asyncio.create_task(collector.post("clicks", click(1), headers=keyed("a")))
    await until(lambda: counted(collector, "duplicates_total"))
    assert not retry.done()
    held_up.set()
    assert (await retry).status_code == 200
    await until(lambda: is_at_rest(collector))
    assert [record.key for record in await collector.logged("clicks")] == [b"1", b"2"]


async def test_ids_that_kafka_has_no_room_for_are_written_later(
    held_up: asyncio.Event,
    app_name: str,
    log_settings: LogSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(id_writer, "_MOST_UNWRITTEN", 2)
    app = shop(app_name)
    async with (
        collect(app, log_settings, tmp_path / "one") as one,
        collect(app, log_settings, tmp_path / "two") as two,
    ):
        for number in range(6):
            url = "/v1/streams/clicks?ack=local"
            await one.http.post(url, content=click(number), headers=keyed(str(number)))
        held_up.set()
        await until(lambda: is_at_rest(one))
        await until(lambda: _knows(two, 6))
        for number in range(6):
            answer = await two.post("clicks", click(number), headers=keyed(str(number)))
            assert answer.json()["duplicates"] == [0]
        keys = [record.key for record in await one.logged("clicks")]
    assert keys == [b"0", b"1", b"2", b"3", b"4", b"5"]


async def _knows(collector: Collector, ids: int) -> bool:
    return await counted(collector, "ids", "") == ids


async def _has_counted(collector: Collector, accepted: int) -> bool:
    done = await counted(collector, "accepted_total")
    return done == accepted and await is_at_rest(collector)
