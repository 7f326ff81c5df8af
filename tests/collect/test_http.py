"""What a sender gets, over real HTTP with a real Kafka behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from millstream.event import fingerprint
from millstream.log.record import Record

from .conftest import Collector

_AT = "2026-11-16T12:00:00Z"


def click(number: int, **more: object) -> bytes:
    return json.dumps({"id": number, "at": _AT, **more}).encode()


def headers(record: Record) -> dict[str, str]:
    return {name: value.decode() for name, value in record.headers}


def problem(response: httpx.Response, status: int) -> dict[str, object]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    content: dict[str, object] = response.json()
    assert content["status"] == status
    assert content["title"]
    return content


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


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        (b'{"id": "seven", "at": 1}', "id", ["seven"]),
        (b'{"id": 9223372036854775808, "at": 1}', "id", ["9223372036854775807"]),
        (b'{"at": 1}', "id", ["id"]),
        (b'{"id": null, "at": 1}', "id", ["null"]),
        (b'{"id": 1}', "at", ["at"]),
        (b'{"id": 1, "at": "yesterday"}', "at", ["yesterday"]),
        (b'{"id": 1, "at": 1, "price": "cheap"}', "price", ["cheap"]),
        (b'{"id": 1, "at": 1', "", ["17"]),
        (b'[{"id": 1, "at": 1}', "", []),
        (b"42", "", ["object"]),
        (b"null", "", ["object"]),
        (b'"text"', "", ["object"]),
        (b"id=1&at=2", "", []),
        (b'{"id": 1, "at": 1, "name": "\xff"}', "", ["UTF-8"]),
        (b"\x00\x01\x02", "", []),
        (b"[[1]]", "", []),
    ],
)
async def test_a_single_bad_event_is_told_what_is_wrong_and_kept_as_it_came(
    collector: Collector, body: bytes, field: str, words: list[str]
) -> None:
    content = problem(await collector.post("clicks", body), 422)
    assert content["field"] == field
    for word in words:
        assert word in str(content["detail"])
    assert content["accepted"] == 0
    assert await collector.logged("clicks") == []
    [record] = await collector.rejected("clicks")
    assert record.value == body or (body == b"[[1]]" and record.value == b"[1]")
    assert headers(record)["reason"] == content["detail"]


async def test_a_stream_without_key_has_records_without_key(collector: Collector) -> None:
    assert (await collector.post("notes", b'{"text":"x"}')).status_code == 200
    [record] = await collector.logged("notes")
    assert record.key is None


async def test_an_empty_array_is_no_mistake_but_an_empty_body_is(collector: Collector) -> None:
    assert (await collector.post("clicks", b"[]")).json()["accepted"] == 0
    problem(await collector.post("clicks", b""), 400)
    problem(await collector.post("clicks", b" \n"), 400)


async def test_an_unknown_stream_names_the_close_one_and_all(collector: Collector) -> None:
    content = problem(await collector.post("click", b"{}"), 404)
    assert "'clicks'" in str(content["detail"])
    assert content["streams"] == ["clicks", "notes"]


@pytest.mark.parametrize("path", ["/", "/v1", "/v2/streams", "/v1/streams/", "/v1/streams/a/b"])
async def test_other_paths_are_not_found(collector: Collector, path: str) -> None:
    problem(await collector.http.get(path), 404)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/streams/clicks", "POST"),
        ("DELETE", "/v1/streams/clicks", "POST"),
        ("POST", "/v1/streams", "GET, HEAD"),
        ("PUT", "/health/live", "GET, HEAD"),
        ("POST", "/metrics", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(
    collector: Collector, method: str, path: str, allowed: str
) -> None:
    response = await collector.http.request(method, path)
    problem(response, 405)
    assert response.headers["allow"] == allowed


@pytest.mark.parametrize("kind", ["text/plain", "application/xml", "application/cloudevents+json"])
async def test_another_content_type_is_refused(collector: Collector, kind: str) -> None:
    content = problem(await collector.post("clicks", b"{}", headers={"content-type": kind}), 415)
    assert "application/x-ndjson" in str(content["detail"])


async def test_a_compressed_body_is_refused(collector: Collector) -> None:
    response = await collector.post("clicks", b"{}", headers={"content-encoding": "gzip"})
    problem(response, 415)


@pytest.mark.parametrize(
    ("query", "status", "word"),
    [
        ("ack=local", 501, "ack=log"),
        ("ack=none", 501, "ack=log"),
        ("ack=sometimes", 400, "sometimes"),
        ("akc=log", 400, "akc"),
    ],
)
async def test_parameters_that_cannot_be_heeded_are_refused(
    collector: Collector, query: str, status: int, word: str
) -> None:
    response = await collector.http.post(f"/v1/streams/clicks?{query}", content=click(1))
    assert word in str(problem(response, status)["detail"])
    assert await collector.logged("clicks") == []


async def test_ack_log_may_be_asked_for_by_name(collector: Collector) -> None:
    response = await collector.http.post("/v1/streams/clicks?ack=log", content=click(1))
    assert response.status_code == 200


async def test_a_body_up_to_the_limit_is_taken_and_a_larger_one_is_not(
    collector: Collector,
) -> None:
    room = 100_000 - len(click(1, name=""))
    assert (await collector.post("clicks", click(1, name="x" * room))).status_code == 200
    content = problem(await collector.post("clicks", click(1, name="x" * (room + 1))), 413)
    assert content["max_body"] == 100_000
    assert len(await collector.logged("clicks")) == 1


async def test_a_body_of_unknown_length_is_bounded_while_it_comes(collector: Collector) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 1_000_000_000:
            yield b" " * 10_000
            sent += 10_000

    try:
        response = await collector.http.post("/v1/streams/clicks", content=endless())
        problem(response, 413)
    except (httpx.WriteError, httpx.ReadError):
        pass  # the collector hung up on us in the middle: so be it
    assert sent < 100_000_000


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


@pytest.mark.parametrize(
    "receipt", ["x", "l.clicks.0.999.1", "l.clicks.7.0.1", "l.clicks.0.0.5", "l.other.0.0.1"]
)
async def test_a_receipt_that_was_never_given_out_is_not_found(
    collector: Collector, receipt: str
) -> None:
    await collector.post("clicks", click(1))
    problem(await collector.http.get(f"/v1/receipts/{receipt}"), 404)


async def test_the_streams_are_described(collector: Collector) -> None:
    content = (await collector.http.get("/v1/streams")).json()
    assert [stream["name"] for stream in content["streams"]] == ["clicks", "notes"]
    assert content["streams"][0]["key"] == "id"
    assert content["streams"][0]["schema"]["properties"]["id"]["type"]


async def test_the_api_is_described_with_each_schema(collector: Collector) -> None:
    content = (await collector.http.get("/v1/openapi.json")).json()
    assert content["openapi"].startswith("3.1")
    body = content["paths"]["/v1/streams/clicks"]["post"]["requestBody"]["content"]
    reference = body["application/x-ndjson"]["schema"]["$ref"]
    name = reference.removeprefix("#/components/schemas/")
    assert "price" in content["components"]["schemas"][name]["properties"]


async def test_health_says_live_and_ready(collector: Collector) -> None:
    assert (await collector.http.get("/health/live")).status_code == 200
    assert (await collector.http.get("/health/ready")).status_code == 200


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
    numbers = range(300)
    responses = await asyncio.gather(*(collector.post("clicks", click(n)) for n in numbers))
    assert {response.status_code for response in responses} == {200}
    records = await collector.logged("clicks")
    by_offset = {record.offset: record.key for record in records}
    for number, response in zip(numbers, responses, strict=True):
        offset = int(response.json()["receipts"][0].split(".")[3])
        assert by_offset[offset] == str(number).encode()
    assert len(records) == 300
