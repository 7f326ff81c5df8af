"""Bodies are split into events, byte for byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.collect.formats.unpack import unpack

from millstream.collect.formats.body import (
    BodyFormat,
    UnreadableContentType,
    check_readable,
    format_of,
    split,
)
from millstream.collect.formats.unpacked import BodyRefused, Limits

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
_events = st.lists(st.dictionaries(st.text(), _values, max_size=3), max_size=5)
_indents = st.sampled_from([None, 1, 2])


@given(_events, _indents)
def test_each_element_of_an_array_is_an_event(
    events: list[dict[str, object]], indent: int | None
) -> None:
    parts = split(json.dumps(events, indent=indent).encode(), BodyFormat.SNIFF)
    assert [json.loads(part) for part in parts] == events


@given(
    _events,
    st.sampled_from(["\n", "\r\n", "\n\n", " \n\t"]),
    st.sampled_from([BodyFormat.SNIFF, BodyFormat.LINES]),
)
def test_each_line_is_an_event(
    events: list[dict[str, object]], separator: str, form: BodyFormat
) -> None:
    lines = [json.dumps(event).encode() for event in events]
    body = separator.encode().join(lines) + b"\n"
    assert split(body, form) == lines or (form is BodyFormat.SNIFF and len(lines) == 1)


@given(st.dictionaries(st.text(), _values), _indents)
def test_one_object_is_one_event_however_it_is_printed(
    event: dict[str, object], indent: int | None
) -> None:
    body = json.dumps(event, indent=indent).encode()
    assert split(body, BodyFormat.SNIFF) == [body]


def test_an_element_keeps_its_bytes() -> None:
    body = b'[ {"a": 1.0e0,  "b":"\\u00e9"} ,{"a":\t2} ]'
    assert split(body, BodyFormat.SNIFF) == [b'{"a": 1.0e0,  "b":"\\u00e9"}', b'{"a":\t2}']


@pytest.mark.parametrize(
    "body", [b'[{"a":1},', b'[{"a":1}] x', b'{"a":', b"nonsense", b"\xff\xfe", b"[\n1,\n"]
)
def test_a_body_that_cannot_be_split_is_one_event(body: bytes) -> None:
    assert split(body, BodyFormat.SNIFF) == [body]


def test_a_broken_line_does_not_hide_the_others() -> None:
    assert split(b'{"a":1}\n{"a":\n{"a":3}', BodyFormat.LINES) == [b'{"a":1}', b'{"a":', b'{"a":3}']


@pytest.mark.parametrize("body", [b"", b" \n ", b"\r\n"])
@pytest.mark.parametrize("form", [BodyFormat.SNIFF, BodyFormat.LINES])
def test_a_blank_body_has_no_events(body: bytes, form: BodyFormat) -> None:
    assert split(body, form) == []


@pytest.mark.parametrize(
    ("content_type", "form"),
    [
        (b"", BodyFormat.SNIFF),
        (b"application/json", BodyFormat.SNIFF),
        (b'Application/JSON; charset="UTF-8"', BodyFormat.SNIFF),
        (b"application/x-ndjson", BodyFormat.LINES),
        (b"application/jsonl;charset=utf-8", BodyFormat.LINES),
        (b"text/csv; header=present", BodyFormat.ROWS),
        (b"application/cloudevents+json; charset=UTF-8", BodyFormat.EVENT),
        (b"application/cloudevents-batch+json", BodyFormat.BATCH),
    ],
)
def test_known_content_types_are_read(content_type: bytes, form: BodyFormat) -> None:
    assert format_of(content_type) is form


@pytest.mark.parametrize(
    ("content_type", "named"),
    [
        (b"text/xml", "text/xml"),
        (b"application/x-www-form-urlencoded", "curl.*-H 'content-type: application/json'"),
        (b"application/json; charset=latin-1", "latin-1"),
        (b"application/cloudevents+avro", "application/x-ndjson"),
        (b"text/csv; header=absent", "without a header"),
    ],
)
def test_other_content_types_are_refused_by_name(content_type: bytes, named: str) -> None:
    with pytest.raises(UnreadableContentType, match=named):
        format_of(content_type)


SMALL = Limits(max_body=1000, max_events=3, max_line=50, max_depth=5, max_event=40)


def test_a_plain_event_is_unpacked_to_its_own_bytes() -> None:
    body = b'{"a": 1}'
    unpacked = unpack(body, "application/json", "", Limits())
    assert unpacked.values == [body]
    assert unpacked.values[0] is body  # nothing is copied on the path that most events take
    assert unpacked.attributes is None
    assert not unpacked.faults


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'[{"a":1},{},{},{}]', "application/json"),
        (b"{}\n{}\n{}\n{}", "application/x-ndjson"),
        (b"{}\n{}\n{}\n{}", ""),
        (b"a\n1\n2\n3\n4\n", "text/csv"),
        (b"[{},{},{},{}]", "application/cloudevents-batch+json"),
    ],
)
def test_too_many_events_are_refused_in_every_format(body: bytes, content_type: str) -> None:
    with pytest.raises(BodyRefused, match=r"4 events or more, of at most 3.*max_events") as refused:
        unpack(body, content_type, "", SMALL)
    assert refused.value.status == 413


def test_one_long_line_is_rejected_alone() -> None:
    long = b'{"a":"' + b"x" * 50 + b'"}'
    unpacked = unpack(b"{}\n" + long + b"\n{}", "application/x-ndjson", "", SMALL)
    assert unpacked.values == [b"{}", long, b"{}"]
    assert list(unpacked.faults) == [1]
    assert "58 bytes, of at most 50" in str(unpacked.faults[1])


def test_one_large_event_is_rejected_alone() -> None:
    large = b'{"a":"' + b"x" * 40 + b'"}'
    unpacked = unpack(b"[{}," + large + b"]", "", "", SMALL)
    assert unpacked.values == [b"{}", large]
    assert "48 bytes, of at most 40" in str(unpacked.faults[1])


def test_one_deep_event_is_rejected_alone_and_brackets_in_texts_do_not_count() -> None:
    flat = b'{"a":"[[[[[[[[\\"[["}'
    unpacked = unpack(b"\n".join([flat, b"[" * 6 + b"]" * 6, b"[[[[[]]]]]"]), "", "", SMALL)
    assert list(unpacked.faults) == [1]
    assert "more than 5 deep" in str(unpacked.faults[1])


@pytest.mark.parametrize("start", [b"[", b'{"a":', b'["', b'["\\"', b"[[]", b'{"a":[]},'])
@pytest.mark.parametrize("content_type", ["", "application/cloudevents+json"])
def test_a_hundred_thousand_brackets_need_no_stack_and_little_time(
    start: bytes, content_type: str
) -> None:
    unpacked = unpack(start * 100_000, content_type, "", Limits())
    assert unpacked.faults or len(unpacked.values) <= 1


def test_attributes_of_a_message_go_to_its_events_with_an_id_each() -> None:
    one = unpack(b"{}", "", "", Limits(), {"id": "7", "subject": "s"})
    assert one.attributes == [{"id": "7", "subject": "s"}]
    two = unpack(b"{}\n{}", "", "", Limits(), {"id": "7", "subject": "s"})
    assert two.attributes == [{"id": "7.0", "subject": "s"}, {"id": "7.1", "subject": "s"}]


def test_whether_a_content_type_can_be_read_is_known_before_the_body() -> None:
    check_readable("application/json")
    check_readable("application/vnd.shop+json", {"specversion": "1.0"})
    with pytest.raises(BodyRefused, match=r"vnd\.shop") as refused:
        check_readable("application/vnd.shop+json")
    assert refused.value.status == 415
    with pytest.raises(BodyRefused, match="CloudEvent's data"):
        check_readable("text/csv", {"specversion": "1.0"})
