from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millstream.client.batch import MAX_BYTES, EventBatch, batches

values = st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.integers(), max_size=3)


async def collected(events: Any, most: int) -> list[EventBatch]:
    return [batch async for batch in batches(events, most)]


@given(st.lists(values, max_size=40), st.integers(1, 7), st.sampled_from([None, 2]))
async def test_batches_contain_every_event_once_in_order_one_by_line(
    events: list[dict[str, Any]], most: int, indent: int | None
) -> None:
    made = await collected((json.dumps(event, indent=indent) for event in events), most)
    lines = [line for batch in made for line in batch.body.split(b"\n")]
    assert [json.loads(line) for line in lines] == events
    assert [index for batch in made for index in batch.indexes] == list(range(len(events)))
    assert all(len(batch.lines) <= most for batch in made)


async def test_blank_lines_are_skipped_but_have_an_index() -> None:
    (batch,) = await collected(['{"a":1}\n', "\n", b"  ", '{"a":2}'], 10)
    assert batch == EventBatch([0, 3], [b'{"a":1}', b'{"a":2}'])


async def test_large_events_make_small_batches() -> None:
    made = await collected([{"text": "x" * (MAX_BYTES // 2)}] * 3, 100)
    assert [len(batch.lines) for batch in made] == [1, 1, 1]


async def test_events_may_come_from_an_asynchronous_iterator() -> None:
    async def source() -> AsyncIterator[dict[str, int]]:
        for n in range(3):
            yield {"n": n}

    made = await collected(source(), 2)
    assert [batch.body for batch in made] == [b'{"n":0}\n{"n":1}', b'{"n":2}']
