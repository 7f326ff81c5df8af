"""Error answers, and the other requests. One collector for all tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from tests.collect.conftest import Collector, click, headers, problem

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
        (b'{"id": 1, "at": 1', "", ["column 18"]),
        (b'[{"id": 1, "at": 1}', "", []),
        (b"42", "", ["object"]),
        (b"null", "", ["object"]),
        (b'"text"', "", ["object"]),
        (b"id=1&at=2", "", []),
        (b'{"id": 1, "at": 1, "name": "\xff"}', "", ["UTF-8"]),
        (b'{"price": 1e999, "id": "\\ud800", "at": 1}', "id", ["ud800"]),
        (b"\x00\x01\x02", "", []),
        (b"[[1]]", "", []),
    ],
)
async def test_a_single_bad_event_is_answered_with_the_reason_and_stored_as_received(
    shared: Collector, body: bytes, field: str, words: list[str]
) -> None:
    logged, rejected = await shared.logged("clicks"), await shared.rejected("clicks")
    content = problem(await shared.post("clicks", body), 422)
    assert content["field"] == field
    for word in words:
        assert word in str(content["detail"])
    assert content["accepted"] == 0
    assert await shared.logged("clicks") == logged
    [record] = (await shared.rejected("clicks"))[len(rejected) :]
    assert record.value == body or (body == b"[[1]]" and record.value == b"[1]")
    assert headers(record)["reason"] == content["detail"]


@pytest.mark.parametrize("stream", ["notes", "names"])
async def test_an_event_too_large_for_kafka_is_rejected_alone(
    shared: Collector, stream: str
) -> None:
    # By its value alone, or by a key that is nearly as large as the value.
    size = 900_000 if stream == "notes" else 500_000
    large, small = b'{"text":"%s"}' % (b"x" * size), b'{"text":"y"}'
    response = await shared.post(stream, large + b"\n" + small)
    assert response.json()["accepted"] == 1
    [bad] = response.json()["rejected"]
    assert bad["index"] == 0
    assert "900000" in bad["error"]
    assert [record.value for record in await shared.logged(stream)] == [small]
    [record] = await shared.rejected(stream)
    assert record.value == large


async def test_an_empty_array_is_accepted_but_an_empty_body_is_not(shared: Collector) -> None:
    assert (await shared.post("clicks", b"[]")).json()["accepted"] == 0
    problem(await shared.post("clicks", b""), 400)
    problem(await shared.post("clicks", b" \n"), 400)


async def test_an_unknown_stream_gets_a_suggestion_and_all_names(shared: Collector) -> None:
    content = problem(await shared.post("click", b"{}"), 404)
    assert "'clicks'" in str(content["detail"])
    assert content["streams"] == ["clicks", "notes", "names", "ticks", "kept"]


@pytest.mark.parametrize("path", ["/", "/v1", "/v2/streams", "/v1/streams/", "/v1/streams/a/b"])
async def test_other_paths_are_not_found(shared: Collector, path: str) -> None:
    problem(await shared.http.get(path), 404)


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
async def test_a_wrong_method_is_answered_with_the_allowed_ones(
    shared: Collector, method: str, path: str, allowed: str
) -> None:
    response = await shared.http.request(method, path)
    problem(response, 405)
    assert response.headers["allow"] == allowed


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/xml", "application/x-www-form-urlencoded"]
)
async def test_another_content_type_is_refused(shared: Collector, kind: str) -> None:
    content = problem(await shared.post("clicks", b"{}", headers={"content-type": kind}), 415)
    assert "application/x-ndjson" in str(content["detail"])


@pytest.mark.parametrize(
    ("encoding", "status"), [("br", 415), ("gzip", 400), ("zstd", 400), ("gzip, gzip", 415)]
)
async def test_a_body_that_cannot_be_unpacked_is_refused(
    shared: Collector, encoding: str, status: int
) -> None:
    rejected = await shared.rejected("clicks")
    response = await shared.post("clicks", b"{}", headers={"content-encoding": encoding})
    problem(response, status)
    assert await shared.rejected("clicks") == rejected


@pytest.mark.parametrize(
    ("query", "status", "word"),
    [
        ("ack=none", 409, "exactly_once"),
        ("ack=sometimes", 400, "sometimes"),
        ("akc=log", 400, "akc"),
    ],
)
async def test_unknown_and_invalid_parameters_are_refused(
    shared: Collector, query: str, status: int, word: str
) -> None:
    logged = await shared.logged("clicks")
    response = await shared.http.post(f"/v1/streams/clicks?{query}", content=click(1))
    assert word in str(problem(response, status)["detail"])
    assert await shared.logged("clicks") == logged


async def test_a_body_up_to_the_limit_is_accepted_and_a_larger_one_is_not(
    shared: Collector,
) -> None:
    logged = await shared.logged("clicks")
    largest = click(1) + b"\n" * (2_000_000 - len(click(1)))
    lines = {"content-type": "application/x-ndjson"}
    assert (await shared.post("clicks", largest, headers=lines)).status_code == 200
    content = problem(await shared.post("clicks", largest + b"\n", headers=lines), 413)
    assert content["max_body"] == 2_000_000
    assert len(await shared.logged("clicks")) == len(logged) + 1


async def test_a_body_of_unknown_length_is_bounded_while_it_arrives(shared: Collector) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 1_000_000_000:
            yield b" " * 10_000
            sent += 10_000

    try:
        response = await shared.http.post("/v1/streams/clicks", content=endless())
        problem(response, 413)
    except (httpx.WriteError, httpx.ReadError):
        pass  # the collector hung up on us in the middle: so be it
    assert sent < 100_000_000


@pytest.mark.parametrize(
    "spoil", [lambda receipt: "x", lambda receipt: receipt[:-1], lambda receipt: "A" + receipt[1:]]
)
async def test_a_receipt_that_was_never_issued_is_not_found(
    shared: Collector, spoil: Callable[[str], str]
) -> None:
    [receipt] = (await shared.post("clicks", click(1))).json()["receipts"]
    assert spoil(receipt) != receipt
    problem(await shared.http.get(f"/v1/receipts/{spoil(receipt)}"), 404)


async def test_the_streams_are_described(shared: Collector) -> None:
    content = (await shared.http.get("/v1/streams")).json()
    assert [stream["name"] for stream in content["streams"]] == [
        "clicks",
        "notes",
        "names",
        "ticks",
        "kept",
    ]
    assert content["streams"][0]["key"] == "id"
    schemas = {stream["name"]: stream["schema"] for stream in content["streams"]}
    assert schemas["clicks"]["properties"]["id"]["type"] == "integer"
    # What a sender is refused without is required, as the description of the calls says too.
    assert {"id", "at"} <= set(schemas["clicks"]["required"])
    described = (await shared.http.get("/v1/openapi.json")).json()["components"]["schemas"]
    assert all(described[f"stream.{name}"] == schema for name, schema in schemas.items())


async def test_the_api_is_described_with_each_schema(shared: Collector) -> None:
    content = (await shared.http.get("/v1/openapi.json")).json()
    assert content["openapi"].startswith("3.1")
    body = content["paths"]["/v1/streams/clicks"]["post"]["requestBody"]["content"]
    reference = body["application/json"]["schema"]["oneOf"][0]["$ref"]
    name = reference.removeprefix("#/components/schemas/")
    assert "price" in content["components"]["schemas"][name]["properties"]


async def test_health_says_live_and_ready(shared: Collector) -> None:
    assert (await shared.http.get("/health/live")).status_code == 200
    assert (await shared.http.get("/health/ready")).status_code == 200
