"""The answers to senders, over real HTTP and with a real Kafka."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest
from tests.collect.conftest import Collector, click, headers, until

from millstream.values.event import fingerprint


async def test_an_accepted_event_is_in_the_log_byte_for_byte(collector: Collector) -> None:
    body = b' {"id": 7,  "at":"2026-11-16T12:00:00Z", "name":"\\u00e9", "unknown": [1]}\n'
    response = await collector.post("clicks", body)
    assert response.status_code == 200
    answer = response.json()
    assert (answer["accepted"], answer["rejected"]) == (1, [])
    [record] = await collector.logged("clicks")
    assert (record.key, record.value) == (b"7", body)
    assert await collector.rejected("clicks") == []


async def test_a_record_names_its_collector_and_time(collector: Collector) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await collector.post("clicks", click(1), headers={"traceparent": trace})
    await collector.post("clicks", click(2), headers={"traceparent": "nonsense"})
    first, second = await collector.logged("clicks")
    told = headers(first)
    assert told == {
        "ce_specversion": "1.0",
        "ce_id": f"{told['ce_collector']}-1",
        "ce_source": f"/{collector.app.name}/clicks",
        "ce_type": f"{collector.app.name}.clicks",
        "ce_time": told["ce_time"],
        "ce_traceparent": trace,
        "content-type": "application/json",
        "ce_collector": told["ce_collector"],
        "ce_sequence": "1",
        "ce_fingerprint": fingerprint(click(1)),
    }
    assert "ce_traceparent" not in headers(second)
    assert headers(second)["ce_sequence"] == "2"


@pytest.mark.parametrize(
    ("content_type", "join"),
    [("application/json", "array"), ("application/x-ndjson", "lines"), (None, "lines")],
)
async def test_a_batch_is_in_the_log_in_its_order(
    collector: Collector, content_type: str | None, join: str
) -> None:
    events = [click(number) for number in range(1000)]
    body = b"\n".join(events) if join == "lines" else b"[" + b",".join(events) + b"]"
    more = {"content-type": content_type} if content_type else {}
    response = await collector.post("clicks", body, headers=more)
    answer = response.json()
    assert (response.status_code, answer["accepted"]) == (200, 1000)
    assert len(set(answer["receipts"])) == 1000
    records = await collector.logged("clicks")
    assert [record.value for record in records] == events
    numbers = [(headers(r)["ce_sequence"], headers(r).get("ce_index", "0")) for r in records]
    assert numbers == [("1", str(index)) for index in range(1000)]
    assert len({headers(record)["ce_id"] for record in records}) == 1000


async def test_one_bad_event_of_a_batch_is_rejected_alone(collector: Collector) -> None:
    lines = [click(0), b'{"id": "x", "at": 1}', click(2), b"{broken", b"", click(5)]
    response = await collector.post(
        "clicks", b"\n".join(lines), headers={"content-type": "application/x-ndjson"}
    )
    assert response.status_code == 200
    answer = response.json()
    assert answer["accepted"] == len(answer["receipts"]) == 3
    assert [(bad["index"], bad["field"]) for bad in answer["rejected"]] == [(1, "id"), (3, "")]
    assert "x" in answer["rejected"][0]["error"]
    assert [r.value for r in await collector.logged("clicks")] == [click(0), click(2), click(5)]
    rejected = await collector.rejected("clicks")
    assert [record.value for record in rejected] == [lines[1], lines[3]]
    assert headers(rejected[0])["reason"] == answer["rejected"][0]["error"]
    assert headers(rejected[0])["field"] == "id"
    both = [*await collector.logged("clicks"), *rejected]
    assert {headers(r)["ce_sequence"] for r in both} == {"1"}
    assert sorted(int(headers(r).get("ce_index", "0")) for r in both) == [0, 1, 2, 3, 4]


async def test_a_stream_without_key_has_records_without_key(collector: Collector) -> None:
    assert (await collector.post("notes", b'{"text":"x"}')).status_code == 200
    [record] = await collector.logged("notes")
    assert record.key is None


async def test_ack_log_may_be_requested_by_name(collector: Collector) -> None:
    response = await collector.http.post("/v1/streams/clicks?ack=log", content=click(1))
    assert response.status_code == 200


async def test_ack_local_is_answered_with_receipts_and_gets_into_the_log(
    collector: Collector,
) -> None:
    body = b"\n".join([click(1), b"{}", click(3)])
    response = await collector.http.post("/v1/streams/clicks?ack=local", content=body)
    assert response.status_code == 202
    answer = response.json()
    assert (answer["accepted"], [bad["index"] for bad in answer["rejected"]]) == (2, [1])

    async def state(receipt: str) -> str:
        return str((await collector.http.get(f"/v1/receipts/{receipt}")).json()["state"])

    async def all_logged() -> bool:
        states = [await state(receipt) for receipt in answer["receipts"]]
        assert set(states) <= {"journaled", "logged"}
        return states == ["logged", "logged"]

    await until(all_logged)
    assert [record.value for record in await collector.logged("clicks")] == [click(1), click(3)]


async def test_ack_none_is_answered_with_nothing_where_the_stream_allows_it(
    collector: Collector,
) -> None:
    response = await collector.post("ticks", b'{"id": 1}\n{"id": "x"}')
    assert (response.status_code, response.content) == (204, b"")

    async def both_there() -> bool:
        return bool(await collector.logged("ticks") and await collector.rejected("ticks"))

    await until(both_there)
    [record] = await collector.logged("ticks")
    assert headers(record)["ce_collector"].rpartition("-")[2] == "1"
    response = await collector.http.post("/v1/streams/ticks?ack=log", content=b'{"id": 2}')
    assert response.status_code == 200
    assert len(response.json()["receipts"]) == 1


async def test_a_body_in_pieces_is_put_together(collector: Collector) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(click(1)), 5):
            yield click(1)[start : start + 5]
            await asyncio.sleep(0)

    response = await collector.http.post("/v1/streams/clicks", content=pieces())
    assert response.status_code == 200
    assert [record.value for record in await collector.logged("clicks")] == [click(1)]


async def test_a_sender_that_disconnects_in_the_middle_of_a_body_stores_nothing(
    collector: Collector,
) -> None:
    host, _, port = collector.url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/streams/clicks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n"
    )
    writer.write(click(1))
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await collector.post("clicks", click(2))).status_code == 200
    assert [record.value for record in await collector.logged("clicks")] == [click(2)]


async def test_a_receipt_shows_where_its_event_is(collector: Collector) -> None:
    lines = b"\n".join([click(1), b'{"id": "x"}', click(3)])
    answer = (await collector.post("clicks", lines)).json()
    place = (await collector.http.get(f"/v1/receipts/{answer['receipts'][1]}")).json()
    records = await collector.logged("clicks")
    assert (place["state"], place["offset"]) == ("logged", records[1].offset)
    assert place["topic"] == records[1].topic
    assert place["id"] == headers(records[1])["ce_id"]
    bad = answer["rejected"][0]
    place = (await collector.http.get(f"/v1/receipts/{bad['receipt']}")).json()
    assert (place["state"], place["error"]) == ("rejected", bad["error"])


async def test_metrics_count_what_was_sent(collector: Collector) -> None:
    await collector.post("clicks", b"\n".join([click(1), b"{}", click(3)]))
    response = await collector.http.get("/metrics")
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    lines = response.text.splitlines()
    assert 'millstream_collect_logged_total{stream="clicks"} 2' in lines
    assert 'millstream_collect_rejected_total{stream="clicks"} 1' in lines
    assert 'millstream_collect_pending{stream="clicks"} 0' in lines
    assert lines[-1] == "# EOF"


async def test_many_senders_at_once_get_their_own_answers(collector: Collector) -> None:
    numbers = range(100)
    responses = await asyncio.gather(*(collector.post("clicks", click(n)) for n in numbers))
    assert {response.status_code for response in responses} == {200}
    records = await collector.logged("clicks")
    by_offset = {record.offset: record.key for record in records}
    for number, response in list(zip(numbers, responses, strict=True))[::10]:
        [receipt] = response.json()["receipts"]
        place = (await collector.http.get(f"/v1/receipts/{receipt}")).json()
        assert by_offset[place["offset"]] == str(number).encode()
    assert len(records) == 100
    # One sender after the other gets the next number, without a gap.
    assert [headers(record)["ce_sequence"] for record in records] == [
        str(number) for number in range(1, 101)
    ]


async def test_an_invalid_event_of_a_stream_that_keeps_them_is_marked(
    collector: Collector,
) -> None:
    response = await collector.post("kept", b'{"id": 1}\n{"id": "x"}\n{"id": 3}')
    assert (response.status_code, response.json()["accepted"]) == (200, 3)
    records = await collector.logged("kept")
    assert [record.value for record in records] == [b'{"id": 1}', b'{"id": "x"}', b'{"id": 3}']
    assert [record.key for record in records] == [b"1", None, b"3"]
    assert ["x" in headers(record).get("ce_invalid", "") for record in records] == [
        False,
        True,
        False,
    ]
    assert await collector.rejected("kept") == []


async def test_a_later_event_can_name_an_earlier_one(collector: Collector) -> None:
    first = (await collector.post("clicks", click(1))).json()["receipts"][0]
    await collector.post("clicks", click(2), headers={"correlation-id": first})
    before, after = await collector.logged("clicks")
    assert "ce_correlationid" not in headers(before)
    assert headers(after)["ce_correlationid"] == first


async def test_a_cloud_event_keeps_its_attributes(collector: Collector) -> None:
    given = {"ce-specversion": "1.0", "ce-id": "a-1", "ce-source": "/shop", "ce-type": "click"}
    await collector.post("clicks", click(1), headers={**given, "ce-subject": "s"})
    [record] = await collector.logged("clicks")
    told = headers(record)
    assert (told["ce_id"], told["ce_source"], told["ce_type"]) == ("a-1", "/shop", "click")
    assert told["ce_subject"] == "s"
    assert told["ce_sequence"] == "1"


async def test_a_compressed_body_is_unpacked(collector: Collector) -> None:
    body = gzip.compress(b"\n".join(click(number) for number in range(100)))
    response = await collector.post("clicks", body, headers={"content-encoding": "gzip"})
    assert response.json()["accepted"] == 100
    assert len(await collector.logged("clicks")) == 100
