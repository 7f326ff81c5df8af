"""Bodies are split into the events that are in them, byte for byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.collect.body import Form, UnreadableContentType, form_of, split

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
_events = st.lists(st.dictionaries(st.text(), _values, max_size=3), max_size=5)
_indents = st.sampled_from([None, 1, 2])


@given(_events, _indents)
def test_an_array_is_its_elements(events: list[dict[str, object]], indent: int | None) -> None:
    parts = split(json.dumps(events, indent=indent).encode(), Form.SNIFF)
    assert [json.loads(part) for part in parts] == events


@given(_events, st.sampled_from(["\n", "\r\n", "\n\n", " \n\t"]), st.sampled_from(list(Form)))
def test_lines_are_an_event_each(
    events: list[dict[str, object]], separator: str, form: Form
) -> None:
    lines = [json.dumps(event).encode() for event in events]
    body = separator.encode().join(lines) + b"\n"
    assert split(body, form) == lines or (form is Form.SNIFF and len(lines) == 1)


@given(st.dictionaries(st.text(), _values), _indents)
def test_one_object_is_one_event_however_it_is_printed(
    event: dict[str, object], indent: int | None
) -> None:
    body = json.dumps(event, indent=indent).encode()
    assert split(body, Form.SNIFF) == [body]


def test_an_element_keeps_its_bytes() -> None:
    body = b'[ {"a": 1.0e0,  "b":"\\u00e9"} ,{"a":\t2} ]'
    assert split(body, Form.SNIFF) == [b'{"a": 1.0e0,  "b":"\\u00e9"}', b'{"a":\t2}']


@pytest.mark.parametrize(
    "body", [b'[{"a":1},', b'[{"a":1}] x', b'{"a":', b"nonsense", b"\xff\xfe", b"[\n1,\n"]
)
def test_what_cannot_be_split_is_one_event_for_the_check_to_refuse(body: bytes) -> None:
    assert split(body, Form.SNIFF) == [body]


def test_a_broken_line_does_not_hide_the_others() -> None:
    assert split(b'{"a":1}\n{"a":\n{"a":3}', Form.LINES) == [b'{"a":1}', b'{"a":', b'{"a":3}']


@pytest.mark.parametrize("body", [b"", b" \n ", b"\r\n"])
@pytest.mark.parametrize("form", list(Form))
def test_nothing_is_no_event(body: bytes, form: Form) -> None:
    assert split(body, form) == []


@pytest.mark.parametrize(
    ("content_type", "form"),
    [
        (b"", Form.SNIFF),
        (b"application/json", Form.SNIFF),
        (b'Application/JSON; charset="UTF-8"', Form.SNIFF),
        (b"application/x-ndjson", Form.LINES),
        (b"application/jsonl;charset=utf-8", Form.LINES),
    ],
)
def test_known_content_types_are_read(content_type: bytes, form: Form) -> None:
    assert form_of(content_type) is form


@pytest.mark.parametrize(
    ("content_type", "named"),
    [
        (b"text/xml", "text/xml"),
        (b"application/x-www-form-urlencoded", "application/json"),
        (b"application/json; charset=latin-1", "latin-1"),
        (b"application/cloudevents+json", "application/x-ndjson"),
    ],
)
def test_other_content_types_are_refused_by_name(content_type: bytes, named: str) -> None:
    with pytest.raises(UnreadableContentType, match=named):
        form_of(content_type)
