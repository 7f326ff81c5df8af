"""Messages that arrived together are batched, within limits."""

from __future__ import annotations

from millstream.collect.settings import CollectSettings
from millstream.connectors.reading.batcher import LINES, Batcher


def test_a_batch_is_no_larger_than_a_small_journal() -> None:
    batcher = Batcher(CollectSettings(max_body=16 << 20))
    lines = [b'{"n":%d,"pad":"%b"}' % (n, b"x" * 400_000) for n in range(5)]
    for number, line in enumerate(lines):
        batcher.add(line, bookmark=b"%d" % number)
    batches = batcher.drain()
    assert [batch.messages for batch in batches] == [2, 2, 1]
    assert all(len(batch.body) <= 1 << 20 for batch in batches)
    assert [batch.bookmark for batch in batches] == [b"1", b"3", b"4"]
    assert b"\n".join(batch.body for batch in batches) == b"\n".join(lines)
    assert batches[0].content_type == LINES


def test_a_line_larger_than_a_batch_is_offered_by_itself() -> None:
    batcher = Batcher(CollectSettings(max_body=16 << 20))
    large = b'{"pad":"%b"}' % (b"x" * (2 << 20))
    for line in (b'{"n":1}', large, b'{"n":2}'):
        batcher.add(line)
    assert [batch.body for batch in batcher.drain()] == [b'{"n":1}', large, b'{"n":2}']
    assert batcher.oversized == 0
