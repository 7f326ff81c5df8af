"""Server-sent events: the parser and the reader."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.collect.recording_output import RecordingOutput
from tests.connectors.conformance_case import PATIENT, running
from tests.connectors.tcp_server import Connection, TcpServer
from tests.wait_until import until

from millstream.connectors import SseSource
from millstream.connectors.sse.reader import EventStreamParser, SseReader

STREAMS = {
    "one": (b"data: {}\n\n", [b"{}"]),
    "no space after the colon": (b"data:{}\n\n", [b"{}"]),
    "two spaces": (b"data:  {}\n\n", [b" {}"]),
    "several lines of data": (b"data: {\ndata: }\n\n", [b"{\n}"]),
    "an empty field of data": (b"data\n\n", [b""]),
    "without an end": (b"data: {}\n\ndata: {}\n", [b"{}"]),
    "comments and unknown fields": (b": hello\ndata: 1\nfoo: bar\n:\n\n", [b"1"]),
    "nothing but an id": (b"id: 7\n\ndata: 1\n\n", [b"1"]),
    "carriage returns": (b"data: 1\r\rdata: 2\r\r", [b"1", b"2"]),
    "both": (b"data: 1\r\n\r\ndata: 2\r\n\r\n", [b"1", b"2"]),
    "a mixture": (b"data: 1\r\n\ndata: 2\n\rdata: 3\r\r\n", [b"1", b"2", b"3"]),
    "a byte order mark": (b"\xef\xbb\xbfdata: 1\n\n", [b"1"]),
    "many empty lines": (b"\n\n\n\ndata: 1\n\n\n\n\ndata: 2\n\n", [b"1", b"2"]),
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("step", [1, 2, 1000])
def test_event_streams_are_parsed_as_the_standard_says(name: str, step: int) -> None:
    text, expected = STREAMS[name]
    events, got = EventStreamParser(1000, None), []
    for start in range(0, len(text), step):
        got += events.feed(text[start : start + step])
    assert [data for _, data, _ in got] == expected


@given(st.lists(st.binary(max_size=9)), st.integers(1, 5))
def test_any_bytes_can_be_parsed(chunks: list[bytes], longest: int) -> None:
    events = EventStreamParser(longest, None)
    for chunk in chunks:
        events.feed(chunk + b"\nid:x\n")


def test_an_event_has_the_type_and_the_last_id_and_bad_ids_are_ignored() -> None:
    events = EventStreamParser(1000, b"0")
    assert events.feed(b"data: a\n\nevent: t\nid: 1\ndata: b\n\nid: \x01\x02\ndata: c\n\n") == [
        (b"message", b"a", b"0"),
        (b"t", b"b", b"1"),
        (b"message", b"c", b"1"),
    ]
    assert events.feed(b"id\ndata: d\n\n") == [(b"message", b"d", b"")]
    assert events.last_id == b""


def test_an_event_that_is_too_large_is_skipped_and_the_next_is_read() -> None:
    events = EventStreamParser(100, None)
    got = []
    for chunk in (b"data: " + b"x" * 99, b"x" * 99, b"x\n\ndata: 1\n", b"\n"):
        got += events.feed(chunk)
    assert [data for _, data, _ in got] == [b"1"]
    assert events.skipped == 1


class Server(TcpServer):
    """Sends the same response to each client, and stores their requests."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(self._hear)
        self.heard: list[str] = []
        self.at: list[float] = []
        self.answer = answer

    async def _hear(self, connection: Connection) -> None:
        self.heard.append((await connection.reader.readuntil(b"\r\n\r\n")).decode())
        self.at.append(time.monotonic())
        await connection.write(self.answer)

    @property
    def url(self) -> str:
        return f"http://user:hidden@127.0.0.1:{self.port}/events?token=hidden"


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n"


async def test_messages_are_batched_with_the_last_id_and_types_are_chosen() -> None:
    server = Server(
        HEAD
        + b"event: a\nid: 1\ndata: 1\n\nevent: b\nid: 2\ndata: 2\n\n"
        + b"event: a\nid: 3\ndata: {\ndata: }\n\nevent: c\nid: 4\ndata: 4\n\nid: 5\ndata: 5\n\n"
    )
    async with server:
        source = SseSource(server.url, headers={"x-shop": "7"}, types=("a", "c", "message"))
        reader, output = SseReader("s", source, PATIENT), RecordingOutput(bookmark=b"zero")
        async with running(reader, output):
            await until(lambda: reader.state.received == 4)
    assert output.messages == [b"1", b"{\n}", b"4\n5"]
    assert output.bookmarks == [b"1", b"3", b"5"]
    assert output.content_types == ["application/json", "application/json", "application/x-ndjson"]
    asked = server.heard[0].lower()
    assert "last-event-id: zero\r\n" in asked
    assert "accept: text/event-stream\r\n" in asked
    assert "x-shop: 7\r\n" in asked
    assert "authorization: basic " in asked


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 401 Go Away\r\ncontent-length: 0\r\n\r\n", "401 Go Away"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "204"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n", "text/html, not with events"),
        (HEAD[:-2] + b"content-encoding: br\r\n\r\n", "answers in br"),
        (
            b"HTTP/1.1 302 Found\r\nlocation: gopher://x/?token=hidden\r\n"
            b"content-length: 0\r\n\r\n",
            "protocol",
        ),
        (b"\x00\xff\r\n\r\n", "illegal"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_response_that_is_no_event_stream_is_reported_and_retried(
    answer: bytes, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    server = Server(answer)
    async with server:
        reader, output = SseReader("s", SseSource(server.url), PATIENT), RecordingOutput()
        async with running(reader, output):
            await until(lambda: server.connections >= 3)
            assert output.messages == []
            assert "hidden" not in reader.state.error + reader.state.url
    assert error in caplog.text
    assert "hidden" not in caplog.text


async def test_the_pause_that_the_server_requests_is_respected() -> None:
    patient = PATIENT.model_copy(update={"reconnect_most": 0.4})
    server = Server(HEAD + b"retry: 300\nid: 1\ndata: 1\n\n")
    async with server:
        reader, output = SseReader("s", SseSource(server.url), patient), RecordingOutput()
        async with running(reader, output):
            await until(lambda: reader.state.received == 1)
            dropped = time.monotonic()
            server.drop()
            await until(lambda: reader.state.received == 2)
            assert server.at[1] - dropped >= 0.3
            # A pause that is too long, also by Retry-After, is limited to the longest.
            server.answer = b"HTTP/1.1 503 No\r\nretry-after: 3600\r\ncontent-length: 0\r\n\r\n"
            dropped = time.monotonic()
            server.drop()
            await until(lambda: len(server.at) == 4)
            assert server.at[3] - server.at[2] >= 0.4
