"""A request that goes the short way is answered as on the long one."""

from __future__ import annotations

import asyncio
import json
import random
from urllib.parse import urlsplit

import httpx
import pytest
from tests.collect.conftest import Collector, click, headers

from millstream.collect.http.fast_path import CollectFastPath, Route
from millstream.web.fast_path import HeadCache, Respond

pytestmark = pytest.mark.asyncio(loop_scope="module")

REQUESTS = {
    "one": ("clicks", click(1), {}),
    "on disk": ("clicks?ack=local", click(2), {}),
    "batch": ("notes", b'{"text": "a"}\n{"text": 1}\n\n{"text": "c"}', {}),
    "array": ("notes?ack=local", b'[{"text": "a"}, {"text": "b"}]', {}),
    "in memory": ("ticks", b'{"id": 1}', {}),
    "invalid": ("clicks", b'{"id": "x"}', {}),
    "not JSON": ("clicks?ack=local", b"}{", {}),
    "blank": ("clicks", b" \n ", {}),
    "kept": ("kept", b'{"id": "x"}', {}),
    "lines": ("notes", b'{"text": "a"}', {"content-type": "application/x-ndjson"}),
    "form": ("clicks", b"id=1", {"content-type": "application/x-www-form-urlencoded"}),
    "weak ack": ("clicks?ack=none", click(3), {}),
    "unknown ack": ("clicks?ack=some", click(3), {}),
    "unknown stream": ("clocks", click(3), {}),
    "last": ("clicks", click(4), {"connection": "close"}),
}


def told(response: httpx.Response) -> object:
    """All of an answer but what is another each time."""
    content = response.json() if response.content else None
    if isinstance(content, dict):
        content["receipts"] = len(content.get("receipts", ()))
        for each in content.get("rejected", ()):
            each["receipt"] = bool(each["receipt"])
    kept = {k: v for k, v in response.headers.items() if k not in ("date", "content-length")}
    return response.status_code, kept, content


@pytest.mark.parametrize("name", REQUESTS)
async def test_both_ways_give_the_same_answer(
    shared: Collector, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, body, given = REQUESTS[name]
    short = await shared.post(path, body, headers=given)
    monkeypatch.setattr(CollectFastPath, "find_route", lambda *_: None)
    monkeypatch.setattr(HeadCache, "find", lambda *_: None)
    long = await shared.post(path, body, headers=given)
    assert told(short) == told(long)
    assert "date" in short.headers


@pytest.mark.parametrize(
    ("given", "is_short"),
    [
        ({}, True),
        ({"content-type": "application/x-ndjson", "x-request-id": "1"}, True),
        ({"content-type": "application/cloudevents+json"}, False),
        *(({name: "1"}, False) for name in ("traceparent", "origin", "ce-id", "idempotency-key")),
    ],
)
async def test_only_what_is_not_special_goes_the_short_way(
    shared: Collector, given: dict[str, str], is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    def handle(path: CollectFastPath, route: Route, body: bytes, respond: Respond) -> None:
        taken.append(body)
        respond(204, b"", b"")

    monkeypatch.setattr(CollectFastPath, "handle", handle)
    await shared.post("clicks", click(5), headers=given)
    assert bool(taken) == is_short


async def test_a_body_in_two_pieces_and_requests_in_a_row_are_answered_in_their_order(
    shared: Collector,
) -> None:
    host = urlsplit(shared.url)
    reader, writer = await asyncio.open_connection(host.hostname, host.port)
    bodies = [b'{"text": "%d in a row"}' % number for number in range(4)]
    # The third goes the long way, behind two that go the short one.
    extra = [b"", b"", b"correlation-id: c3\r\n", b""]
    requests = [
        b"POST /v1/streams/names HTTP/1.1\r\nhost: localhost\r\n%bcontent-length: %d\r\n\r\n%b"
        % (more, len(body), body)
        for more, body in zip(extra, bodies, strict=True)
    ]
    everything = b"".join(requests)
    cut = len(requests[0]) - 5
    writer.write(everything[:cut])
    await writer.drain()
    writer.write(everything[cut:])
    receipts = [await _receipt(reader) for _ in requests]
    writer.close()
    found = [(await shared.http.get(f"/v1/receipts/{each}")).json() for each in receipts]
    offsets = [each["offset"] for each in found]
    assert offsets == sorted(offsets)
    records = {record.offset: record for record in await shared.logged("names")}
    assert [records[offset].value for offset in offsets] == bodies
    assert headers(records[offsets[2]])["ce_correlationid"] == "c3"


@pytest.mark.parametrize("seed", range(5))
async def test_requests_that_begin_alike_are_told_apart_however_they_are_cut(
    shared: Collector, seed: int
) -> None:
    draw = random.Random(seed)
    host = urlsplit(shared.url)
    reader, writer = await asyncio.open_connection(host.hostname, host.port)
    # Few heads, so that most came before; a body may look like the end of one.
    bodies = [
        json.dumps({"text": f"{seed}-{n:03}" + draw.choice(["", "\r\n\r\n", "POST / HTTP/1.1"])})
        for n in range(120)
    ]
    requests = [
        b"POST /v1/streams/names HTTP/1.1\r\nhost: localhost\r\n%bcontent-length: %d\r\n\r\n%b"
        % (draw.choice([b"", b"", b"x-more: 1\r\n", b"correlation-id: c\r\n"]), len(body), body)
        for body in map(str.encode, bodies)
    ]
    receipts, waiting = [], 0
    while requests:
        at_once, requests = requests[: (count := draw.choice([1, 1, 1, 2, 3]))], requests[count:]
        data = b"".join(at_once)
        cut = draw.choice([len(data), draw.randrange(1, len(data))])
        writer.write(data[:cut])
        await writer.drain()
        await asyncio.sleep(0)
        writer.write(data[cut:])
        waiting += len(at_once)
        if draw.random() < 0.8:  # else the next ones come before these are answered
            receipts += [await _receipt(reader) for _ in range(waiting)]
            waiting = 0
    receipts += [await _receipt(reader) for _ in range(waiting)]
    writer.close()
    found = [(await shared.http.get(f"/v1/receipts/{each}")).json() for each in receipts]
    records = {record.offset: record.value for record in await shared.logged("names")}
    assert [records[each["offset"]] for each in found] == [body.encode() for body in bodies]


async def _receipt(reader: asyncio.StreamReader) -> str:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    (receipt,) = json.loads(await reader.readexactly(length))["receipts"]
    return str(receipt)
