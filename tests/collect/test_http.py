"""What a sender gets, over real HTTP with a real Kafka behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from millstream.event import fingerprint

from .conftest import Collector, click, headers


async def test_an_accepted_event_is_in_the_log_byte_for_byte(collector: Collector) -> None:
    body = b' {"id": 7,  "at":"2026-11-16T12:00:00Z", "name":"\\u00e9", "unknown": [1]}\n'
    response = await collector.post("clicks", body)
    assert response.status_code == 200
    answer = response.json()
    assert (answer["accepted"], answer["rejected"]) == (1, [])
    [record] = await collector.logged("clicks")
    assert (record.key, record.value) == (b"7", body)
    assert await collector.rejected("clicks") == []


async def test_a_record_says_who_collected_it_and_when(collector: Collector) -> None:
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
    sequences = [int(headers(record)["ce_sequence"]) for record in records]
    assert sequences == list(range(1, 1001))
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
    assert sorted(int(headers(r)["ce_sequence"]) for r in both) == [1, 2, 3, 4, 5]


async def test_a_stream_without_key_has_records_without_key(collector: Collector) -> None:
    assert (await collector.post("notes", b'{"text":"x"}')).status_code == 200
    [record] = await collector.logged("notes")
    assert record.key is None


async def test_ack_log_may_be_asked_for_by_name(collector: Collector) -> None:
    response = await collector.http.post("/v1/streams/clicks?ack=log", content=click(1))
    assert response.status_code == 200


async def test_a_body_in_pieces_is_put_together(collector: Collector) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(click(1)), 5):
            yield click(1)[start : start + 5]
            await asyncio.sleep(0)

    response = await collector.http.post("/v1/streams/clicks", content=pieces())
    assert response.status_code == 200
    assert [record.value for record in await collector.logged("clicks")] == [click(1)]


async def test_a_sender_that_leaves_in_the_middle_of_a_body_leaves_nothing(
    collector: Collector,
) -> None:
    host, _, port = collector.url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/streams/clicks HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n")
    writer.write(click(1))
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await collector.post("clicks", click(2))).status_code == 200
    assert [record.value for record in await collector.logged("clicks")] == [click(2)]


async def test_a_receipt_tells_where_its_event_is(collector: Collector) -> None:
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


async def test_many_senders_at_once_get_what_is_theirs(collector: Collector) -> None:
    numbers = range(100)
    responses = await asyncio.gather(*(collector.post("clicks", click(n)) for n in numbers))
    assert {response.status_code for response in responses} == {200}
    records = await collector.logged("clicks")
    by_offset = {record.offset: record.key for record in records}
    for number, response in zip(numbers, responses, strict=True):
        offset = int(response.json()["receipts"][0].split(".")[3])
        assert by_offset[offset] == str(number).encode()
    assert len(records) == 100
