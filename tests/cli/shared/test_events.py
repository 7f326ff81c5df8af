from __future__ import annotations

import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cli.shared.events import FileEvents
from millstream.errors import MillstreamError


async def read(data: bytes) -> tuple[list[bytes], FileEvents, int]:
    seen: list[int] = []
    events = FileEvents(io.BytesIO(data), "the file", seen.append)
    return [event async for event in events], events, sum(seen)


async def test_each_line_is_an_event_and_blank_lines_are_none() -> None:
    found, events, size = await read(b'\n{"a":1}\r\n\n  \n{"a":2}')
    assert [event.strip() for event in found] == [b'{"a":1}', b'{"a":2}']
    assert [events.place(0), events.place(1)] == ["line 2", "line 5"]
    assert size == 21


async def test_the_elements_of_an_array_are_events_with_their_own_bytes() -> None:
    found, events, _ = await read(b' [ {"a": 1.0},\n{"b" : [1, 2]} ]\n')
    assert found == [b'{"a": 1.0}', b'{"b" : [1, 2]}']
    assert events.place(1) == "element 2"


async def test_an_event_over_several_lines_becomes_one_line() -> None:
    found, _, _ = await read(b'[{\n  "a": 1,\n  "b": "x\\ny"\n}]')
    assert found == [b'{"a":1,"b":"x\\ny"}']


async def test_a_broken_array_is_refused_with_the_place() -> None:
    with pytest.raises(MillstreamError, match="the file as a JSON array"):
        await read(b'[{"a":1},')


@pytest.mark.parametrize("data", [b"", b"\n\n", b"   ", b"[]"])
async def test_an_empty_file_has_no_events(data: bytes) -> None:
    assert (await read(data))[0] == []


async def test_events_come_out_of_a_pipe_before_it_is_closed() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb", buffering=0) as target:
        events = aiter(FileEvents(source, "-", lambda count: None))
        target.write(b'{"a":1}\n')
        assert await anext(events) == b'{"a":1}'
        target.write(b'{"a":2}\n')
        assert await anext(events) == b'{"a":2}'


@given(st.lists(st.binary(min_size=1).filter(lambda line: line.strip(b" \t\r\n"))))
async def test_whatever_is_in_a_line_comes_out_as_it_was(lines: list[bytes]) -> None:
    lines = [b"{" + line.replace(b"\n", b"") for line in lines]
    assert (await read(b"\n".join(lines)))[0] == lines
