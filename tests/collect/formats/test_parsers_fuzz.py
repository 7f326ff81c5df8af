"""Any bytes give events, faults or a refusal, deterministically and within the limits."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
from typing import Any

import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.event_strategies import Case, cases

from millstream import App
from millstream.collect.formats.body import Unpacker, check_readable
from millstream.collect.formats.cloudevents import attributes_in
from millstream.collect.formats.compression import encoding_of
from millstream.collect.formats.unpacked import BodyRefused, Limits, UnpackedBody
from millstream.errors import InvalidEvent

LIMITS = Limits(max_body=2000, max_events=20, max_line=500, max_depth=10, max_event=400)
CONTENT_TYPES = (
    *("", "application/json", "application/x-ndjson", "application/json-seq", "text/csv"),
    *("application/cloudevents+json", "application/cloudevents-batch+json"),
)
DDL = "id BIGINT NOT NULL, price DOUBLE, paid BOOLEAN, tags ARRAY<STRING>, at TIMESTAMP"
app = App("fuzz")
app.stream("events", schema=DDL, key="id")
unpack = Unpacker(app.streams["events"].schema, LIMITS).unpack
check = app.streams["events"].validator().check

# Parts from which something almost right can be put together.
_tokens = st.sampled_from(
    [
        *(
            b"{",
            b"}",
            b"[",
            b"]",
            b",",
            b":",
            b"\n",
            b"\r\n",
            b"\r",
            b'"',
            b'""',
            b"\\",
            b"\x1e",
            b" ",
        ),
        *(
            b'"id":',
            b"1",
            b"-0",
            b"1e999",
            b"0.1",
            b"null",
            b"true",
            b'"a"',
            b"NaN",
            b"\xff",
            b"\0",
        ),
        *(
            b"id,price,tags\n",
            b"id",
            b"\xef\xbb\xbf",
            b'"\\ud800"',
            b"\xc3\xbc",
            b"[" * 30,
            b"9" * 400,
        ),
        *(b'{"id":1}', b'"specversion":"1.0",', b'"id":"7","source":"/s","type":"t",', b'"data":'),
        *(b'"data_base64":"e30="', b'"data_base64":', b'"time":"2026-01-31T12:00:00Z",'),
    ]
)
_bodies = st.binary(max_size=300) | st.lists(_tokens, max_size=30).map(b"".join)
_content_types = st.sampled_from(CONTENT_TYPES)
_attributes = st.dictionaries(
    st.sampled_from(["specversion", "id", "source", "type", "time", "Bad", "sequence"])
    | st.text(max_size=5),
    st.sampled_from(["1.0", "2026-01-31T12:00:00Z", ""]) | st.text(max_size=10),
    max_size=6,
)
_encoded = st.sampled_from(["", "gzip", "zstd"])


def compressed(body: bytes, encoding: str) -> bytes:
    if encoding == "gzip":
        return gzip.compress(body)
    return zstandard.compress(body) if encoding else body


@settings(max_examples=600)
@given(_bodies, _content_types, _attributes | st.just({}), _encoded)
def test_every_body_gives_events_faults_or_a_refusal(
    body: bytes, content_type: str, attributes: dict[str, str], encoding: str
) -> None:
    sent = compressed(body, encoding)
    try:
        unpacked = unpack(sent, content_type, encoding, attributes)
    except BodyRefused as refused:
        status = refused.status
    else:
        status = 200
        again = unpack(sent, content_type, encoding, attributes)
        assert _plain(again) == _plain(unpacked)  # or recovery would differ
        assert len(unpacked.values) <= LIMITS.max_events
        assert sum(map(len, unpacked.values)) <= 4 * LIMITS.max_body
        assert set(unpacked.faults) <= set(range(len(unpacked.values)))
        if unpacked.attributes is not None:
            assert len(unpacked.attributes) == len(unpacked.values)
        for index, value in enumerate(unpacked.values):
            _check_one(value, unpacked.faults.get(index))
    assert status in (200, 400, 413, 415)


def _plain(unpacked: UnpackedBody) -> tuple[object, ...]:
    faults = {index: str(fault) for index, fault in unpacked.faults.items()}
    return unpacked.values, unpacked.attributes, faults


def _check_one(value: bytes, fault: InvalidEvent | None) -> None:
    assert isinstance(value, bytes)
    if fault is not None:
        assert str(fault)
        return
    assert len(value) <= LIMITS.max_event
    try:
        check(value)
    except InvalidEvent as invalid:
        assert str(invalid)  # noqa: PT017
    else:
        json.loads(value)  # what is accepted is JSON for everyone


@given(st.text(max_size=60), st.text(max_size=30), _attributes)
def test_every_header_is_read_or_refused(
    content_type: str, encoding: str, attributes: dict[str, str]
) -> None:
    for call in (lambda: check_readable(content_type, attributes), lambda: encoding_of(encoding)):
        try:
            call()
        except BodyRefused as refused:
            assert refused.status == 415  # noqa: PT017


@given(st.lists(st.tuples(st.just(b"ce-subject") | st.binary(max_size=5), st.binary(max_size=40))))
def test_every_attribute_header_is_read_or_refused(headers: list[tuple[bytes, bytes]]) -> None:
    try:
        attributes = attributes_in(headers)
    except BodyRefused as refused:
        assert refused.status == 400  # noqa: PT017
    else:
        assert all(isinstance(text, str) for text in attributes.values())


@settings(max_examples=150)
@given(cases, _encoded)
def test_an_event_is_the_same_in_every_format(case: Case, encoding: str) -> None:
    value = json.dumps(case.event).encode()
    envelope: dict[str, Any] = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
    encoded = base64.b64encode(value).decode()
    forms = {
        "application/json": value,
        "application/x-ndjson": value + b"\n",
        "application/json-seq": b"\x1e" + value + b"\n",
        "application/cloudevents+json": json.dumps({**envelope, "data": case.event}).encode(),
        "application/cloudevents-batch+json": json.dumps(
            [{**envelope, "data_base64": encoded}]
        ).encode(),
    }
    unpack = Unpacker(case.schema, Limits()).unpack
    for content_type, body in forms.items():
        unpacked = unpack(compressed(body, encoding), content_type, encoding)
        assert not unpacked.faults
        assert unpacked.values == [value]


@settings(max_examples=150)
@given(cases)
def test_an_event_is_the_same_in_csv(case: Case) -> None:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, [field.name for field in case.schema.fields])
    writer.writeheader()
    writer.writerow({name: _cell(value) for name, value in case.event.items()})
    unpacked = Unpacker(case.schema, Limits()).unpack(file.getvalue().encode(), "text/csv")
    found = [json.loads(value) for value in unpacked.values]
    wanted = {name: _kept(value) for name, value in case.event.items()}
    wanted |= {field.name: None for field in case.schema.fields if field.name not in wanted}
    assert not unpacked.faults
    if len(case.schema.fields) > 1 or any(value is not None for value in wanted.values()):
        (event,) = found
        assert {name: _number(value) for name, value in event.items()} == wanted


def _cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, (dict, list, bool)) else value


def _kept(value: object) -> object:
    return None if value == "" else _number(value)


def _number(value: object) -> object:
    """Decimals are written as text, so that they keep their digits."""
    if isinstance(value, (dict, list, bool)) or value is None:
        return value
    try:
        return float(str(value))
    except ValueError:
        return value
