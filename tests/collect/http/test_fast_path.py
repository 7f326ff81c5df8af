"""The fast path answers as ASGI does, and handles only requests without special headers."""

from __future__ import annotations

import asyncio
import json
import random
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.collect.conftest import Collector, click, headers

from millstream.collect.http.fast_path import SPECIAL_HEADERS, CollectFastPath, Route
from millstream.collect.http.request import HEADERS, read_headers
from millstream.web.fast_path import HeadCache, Respond

in_module = pytest.mark.asyncio(loop_scope="module")

READ_BY_BOTH = {b"content-type", b"content-length"}
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


def stable(response: httpx.Response) -> object:
    """The parts of an answer that are the same each time."""
    content = response.json() if response.content else None
    if isinstance(content, dict):
        content["receipts"] = len(content.get("receipts", ()))
        for each in content.get("rejected", ()):
            each["receipt"] = bool(each["receipt"])
    kept = {k: v for k, v in response.headers.items() if k not in ("date", "content-length")}
    return response.status_code, kept, content


@in_module
@pytest.mark.parametrize("name", REQUESTS)
async def test_the_fast_path_and_asgi_give_the_same_answer(
    shared: Collector, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, body, more = REQUESTS[name]
    fast = await shared.post(path, body, headers=more)
    monkeypatch.setattr(CollectFastPath, "find_route", lambda *_: None)
    monkeypatch.setattr(HeadCache, "find", lambda *_: None)
    slow = await shared.post(path, body, headers=more)
    assert stable(fast) == stable(slow)
    assert "date" in fast.headers


@in_module
@pytest.mark.parametrize(
    ("headers_sent", "is_fast"),
    [
        ({}, True),
        ({"content-type": "application/x-ndjson", "x-request-id": "1"}, True),
        ({"content-type": "application/cloudevents+json"}, False),
        *(({name.decode(): "1"}, False) for name in HEADERS if name not in READ_BY_BOTH),
        ({"ce-id": "1"}, False),
        ({"expect": "nothing"}, False),
    ],
)
async def test_only_requests_without_special_headers_take_the_fast_path(
    shared: Collector, headers_sent: dict[str, str], is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled = []

    def handle(self: CollectFastPath, route: Route, body: bytes, respond: Respond) -> None:
        handled.append(body)
        respond(204, b"", b"")

    monkeypatch.setattr(CollectFastPath, "handle", handle)
    await shared.post("clicks", click(5), headers=headers_sent)
    assert bool(handled) == is_fast


@given(
    st.sampled_from([*HEADERS, b"ce-id", b"x-ce-id", b"host"]) | st.binary(min_size=1), st.binary()
)
def test_the_request_reader_ignores_every_header_that_the_fast_path_does(
    name: bytes, value: bytes
) -> None:
    if name not in READ_BY_BOTH | SPECIAL_HEADERS and not name.startswith(b"ce-"):
        assert read_headers([(name, value)]) == read_headers([])


@in_module
async def test_a_body_in_two_pieces_and_requests_in_a_row_are_answered_in_their_order(
    shared: Collector,
) -> None:
    host = urlsplit(shared.url)
    reader, writer = await asyncio.open_connection(host.hostname, host.port)
    bodies = [b'{"text": "%d in a row"}' % number for number in range(4)]
    # The third goes through ASGI, after two on the fast path.
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


@in_module
@pytest.mark.parametrize("seed", range(5))
async def test_requests_with_equal_heads_are_distinguished_however_they_are_split(
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
