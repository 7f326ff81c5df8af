"""CloudEvents in their three modes: valid ones are read, the error of an invalid one is named."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.collect.formats.unpack import unpack

from millstream.collect.formats.cloudevents import attributes_in
from millstream.collect.formats.unpacked import BodyRefused, Limits, UnpackedBody

ATTRIBUTES = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "order"}
HEADERS = [(f"ce-{name}".encode(), value.encode()) for name, value in ATTRIBUTES.items()]
STRUCTURED = "application/cloudevents+json; charset=utf-8"
BATCHED = "application/cloudevents-batch+json"


def envelope(**members: Any) -> bytes:
    given = {**ATTRIBUTES, "data": {"a": 1}, **members}
    return json.dumps({name: value for name, value in given.items() if value is not ...}).encode()


def read(body: bytes, content_type: str = STRUCTURED, **attributes: str) -> UnpackedBody:
    return unpack(body, content_type, "", Limits(), attributes)


def test_the_body_is_the_event_if_the_attributes_are_in_headers() -> None:
    unpacked = read(b'{"a": 1}', "application/json", **ATTRIBUTES, subject="s", tenant="x")
    assert unpacked.values == [b'{"a": 1}']
    assert unpacked.attributes == [
        {**ATTRIBUTES, "subject": "s", "tenant": "x", "datacontenttype": "application/json"}
    ]
    assert not unpacked.faults


def test_a_binary_mode_event_is_one_even_if_it_looks_like_many() -> None:
    for body in (b"[{},{}]", b"{}\n{}", b""):
        assert read(body, "", **ATTRIBUTES).values == [body]


def test_an_event_in_an_envelope_keeps_the_bytes_of_its_data() -> None:
    body = b'{"specversion":"1.0","id":"7","source":"/shop","type":"order","data": {"a":  1.0e0} }'
    unpacked = read(body)
    assert unpacked.values == [b'{"a":  1.0e0}']
    assert unpacked.attributes == [ATTRIBUTES]


def test_data_may_be_base64() -> None:
    data = base64.b64encode(b'{"a":1}').decode()
    assert read(envelope(data=..., data_base64=data)).values == [b'{"a":1}']


def test_attributes_of_an_envelope_become_canonical_text() -> None:
    unpacked = read(envelope(flag=True, count=-3, text="ü", unset=None))
    assert unpacked.attributes == [{**ATTRIBUTES, "flag": "true", "count": "-3", "text": "ü"}]


def test_a_bad_event_of_a_batch_is_rejected_alone() -> None:
    good, bad = envelope(), envelope(id=...)
    unpacked = read(b"[" + b",".join([good, bad, good]) + b"]", BATCHED)
    assert unpacked.values == [b'{"a": 1}', bad, b'{"a": 1}']
    assert unpacked.attributes == [ATTRIBUTES, {}, ATTRIBUTES]
    assert {index: fault.field for index, fault in unpacked.faults.items()} == {1: "id"}


def test_an_event_with_too_many_members_is_rejected() -> None:
    (fault,) = read(envelope(**{f"a{n}": "v" for n in range(1000)})).faults.values()
    assert "has 1,005 members, of at most 1,000" in str(fault)


def test_an_empty_batch_has_no_events() -> None:
    assert read(b"[]", BATCHED).values == []


@pytest.mark.parametrize(
    ("members", "field", "expected"),
    [
        *(({name: ...}, name, "missing") for name in ATTRIBUTES),
        ({"specversion": "0.3"}, "specversion", "'1.0', got '0.3'"),
        ({"id": ""}, "id", "not empty"),
        ({"source": 1.5}, "source", "got 1.5"),
        ({"type": {"a": 1}}, "type", "a text"),
        ({"time": "yesterday"}, "time", "got 'yesterday'"),
        ({"subject": "a\u0007"}, "subject", "control codes"),
        ({"Tenant": "x"}, "Tenant", "a-z and 0-9"),
        ({"datacontenttype": "text/xml"}, "datacontenttype", "application/json, got 'text/xml'"),
        ({"data": ...}, "data", "missing"),
        ({"data_base64": ""}, "data", "both"),
        ({"data": ..., "data_base64": "§"}, "data_base64", "base64"),
        ({"data": ..., "data_base64": 7}, "data_base64", "base64"),
        ({"tenant": "x" * 20_000}, "", "16384"),
    ],
)
def test_the_error_in_an_envelope_is_named(
    members: dict[str, Any], field: str, expected: str
) -> None:
    body = envelope(**members)
    unpacked = read(body)
    assert unpacked.values == [body]
    fault = unpacked.faults[0]
    assert fault.field == field
    assert expected in str(fault)


@pytest.mark.parametrize("name", ["id", "source", "type"])
def test_a_missing_header_is_named(name: str) -> None:
    unpacked = read(b"{}", "", **{key: text for key, text in ATTRIBUTES.items() if key != name})
    assert unpacked.faults[0].field == name
    assert unpacked.values == [b"{}"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"7", b'{"a":' * 100_000])
@pytest.mark.parametrize("content_type", [STRUCTURED, BATCHED])
def test_a_body_that_is_no_envelope_is_one_fault(body: bytes, content_type: str) -> None:
    unpacked = read(body, content_type)
    if (body, content_type) != (b"[]", BATCHED):
        assert unpacked.values == [body]
        assert "CloudEvent" in str(unpacked.faults[0])


@pytest.mark.parametrize("member", [b'"\xff": 1', b'"subject": "\xff"'])
@pytest.mark.parametrize("content_type", [STRUCTURED, BATCHED])
def test_an_envelope_that_is_not_utf8_is_rejected_alone(member: bytes, content_type: str) -> None:
    good, bad = envelope(), envelope()[:-1] + b", " + member + b"}"
    body = b"[%b, %b]" % (bad, good) if content_type == BATCHED else bad
    unpacked = read(body, content_type)
    assert unpacked.values[0] == bad
    assert list(unpacked.faults) == [0]
    assert "CloudEvent" in str(unpacked.faults[0])


def test_an_attribute_with_the_name_of_our_header_is_kept_under_another() -> None:
    unpacked = read(envelope(sequence="00012", collector="me"))
    assert unpacked.attributes == [
        {**ATTRIBUTES, "sendersequence": "00012", "sendercollector": "me"}
    ]


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_percent_encoded_values_are_decoded(value: str) -> None:
    assert attributes_in([(b"ce-subject", quote(value).encode())]) == {"subject": value}


@pytest.mark.parametrize(
    ("header", "value"),
    [
        (b"Euro%20%E2%82%AC%20%f0%9f%98%80", "Euro € 😀"),
        (b'"a \\"b\\" %25"', 'a "b" %'),
        (b"100%", "100%"),
        (b" plain ", "plain"),
        (b'"half', '"half'),
    ],
)
def test_header_values_are_read_as_the_binding_specifies(header: bytes, value: str) -> None:
    found = attributes_in([(b"content-type", b"x"), (b"ce-subject", header)])
    assert found == {"subject": value}


@pytest.mark.parametrize("header", [b"%C0%A0", b"\xff", b"%ED%A0%80"])
def test_header_values_that_are_not_utf8_are_refused(header: bytes) -> None:
    with pytest.raises(BodyRefused, match="'ce-subject'") as refused:
        attributes_in([*HEADERS, (b"ce-subject", header)])
    assert refused.value.status == 400
