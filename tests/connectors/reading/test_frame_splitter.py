"""Splitting bytes that arrive in arbitrary chunks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.collect.settings import CollectSettings
from millstream.connectors.reading.batcher import Batcher
from millstream.connectors.reading.frame_splitter import FrameSplitter
from millstream.connectors.reading.line_splitter import LineSplitter, chunk_size

pieces = st.lists(st.binary(max_size=12).map(lambda piece: piece.replace(b"\x00", b"\n")))


@given(pieces, st.sampled_from([b"\n", b"\n\n"]))
def test_the_frames_do_not_depend_on_the_chunks(chunks: list[bytes], separator: bytes) -> None:
    frames = FrameSplitter(separator, longest=10_000)
    whole = b"".join(frames.feed(chunk) for chunk in chunks)
    text = b"".join(chunks)
    end = text.rfind(separator)
    assert whole == (text[: end + len(separator)] if end >= 0 else b"")
    assert whole + frames.rest() == text
    assert frames.skipped == 0


@given(st.lists(st.integers(0, 30)), st.integers(1, 7))
def test_a_frame_that_is_too_long_is_skipped_alone_and_memory_is_bounded(
    lengths: list[int], step: int
) -> None:
    longest = 10
    text = b"".join(b"%d" % (length % 10) * length + b"\n" for length in lengths)
    frames, got = FrameSplitter(b"\n", longest), b""
    for start in range(0, len(text), step):
        got += frames.feed(text[start : start + step])
        assert len(frames.rest()) <= longest
    kept = [line for line in got.split(b"\n")[:-1]]
    # A frame that is longer by less than a chunk may still be accepted.
    assert [line for line in kept if len(line) <= longest] == [
        line for line in text.split(b"\n")[:-1] if len(line) <= longest
    ]
    assert all(len(line) < longest + step for line in kept)
    assert len(kept) + frames.skipped == len(lengths)


@given(
    st.lists(st.text("ab\r", max_size=6)),
    st.integers(2, 40),
    st.integers(1, 5),
)
def test_batches_of_lines_are_never_too_large(
    texts: list[str], max_body: int, max_events: int
) -> None:
    settings = CollectSettings(max_body=max_body, max_events=max_events)
    lines, size = LineSplitter(settings), chunk_size(settings)
    text = "\n".join(texts).encode()
    batches = []
    for start in range(0, len(text), size):
        batches += lines.feed(text[start : start + size])
    batches += lines.end()
    for batch in batches:
        assert len(batch.body) <= max_body
        assert len([line for line in batch.body.split(b"\n") if line]) <= max_events
    got = sum(len([line for line in p.body.split(b"\n") if line.strip()]) for p in batches)
    sent = len([line for line in text.split(b"\n") if line.strip()])
    assert sent - lines.skipped() <= got <= sent


@given(st.lists(st.sampled_from([b"{}", b"[1]", b"", b" ", b"1\n2", b"xyz", b"y" * 20])))
def test_messages_are_batched_in_order_and_alone_if_they_must_be(
    messages: list[bytes],
) -> None:
    batcher = Batcher(CollectSettings(max_body=15, max_events=3))
    for number, message in enumerate(messages):
        batcher.add(message, bookmark=b"%d" % number)
    batches = batcher.drain()
    events = [event for batch in batches for event in _events(batch.body, batch.messages)]
    assert events == [each for each in messages if each.strip() and len(each) <= 15]
    assert batcher.oversized == messages.count(b"y" * 20)
    assert all(len(batch.body) <= 15 and batch.messages <= 3 for batch in batches)
    marks = [int(batch.bookmark or b"-1") for batch in batches]
    assert marks == sorted(marks)
    assert batcher.drain() == []


def _events(body: bytes, messages: int) -> list[bytes]:
    return [body] if messages == 1 else body.split(b"\n")
