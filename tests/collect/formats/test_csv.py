"""CSV becomes JSON by the stream's schema; a row that does not fit is rejected alone."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream import App
from millstream.collect.formats.body import Unpacker
from millstream.collect.formats.unpacked import BodyRefused, Limits, UnpackedBody
from millstream.errors import InvalidEvent
from millstream.schema import parse_schema

DDL = (
    "id BIGINT NOT NULL, price DOUBLE, paid BOOLEAN, city STRING, at TIMESTAMP, day DATE, "
    "amount DECIMAL(20,2), tags ARRAY<STRING>, place STRUCT<lat: DOUBLE>"
)
SCHEMA = parse_schema(DDL)
app = App("shop")
app.stream("orders", schema=DDL)
check = app.streams["orders"].validator().check


def read(text: str, limits: Limits | None = None) -> UnpackedBody:
    return Unpacker(SCHEMA, limits or Limits()).unpack(text.encode(), "text/csv")


def cell(column: str, text: str) -> Any:
    quoted = text.replace('"', '""')
    (value,) = read(f'id,{column}\n1,"{quoted}"\n').values
    return json.loads(value)[column]


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        ("price", "1.50", 1.5),
        ("price", " -2e3 ", -2000.0),
        ("price", "+.5", 0.5),
        ("price", "", None),
        ("paid", "TRUE", True),
        ("paid", "f", False),
        ("paid", "0", False),
        ("city", "007", "007"),
        ("city", 'Sankt "Peter"\r\nOrding, Nord', 'Sankt "Peter"\r\nOrding, Nord'),
        ("city", "", None),
        ("at", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        ("at", "1769860800000", 1769860800000),
        ("day", "2026-01-31", "2026-01-31"),
        ("amount", "12345678901234567.89", "12345678901234567.89"),
        ("tags", '["a","b"]', ["a", "b"]),
        ("place", '{"lat": 1.5}', {"lat": 1.5}),
        ("unknown", "1", "1"),
    ],
)
def test_a_cell_is_converted_to_the_type_of_its_column(
    column: str, text: str, value: object
) -> None:
    found = cell(column, text)
    assert found == value
    assert type(found) is type(value)
    check(json.dumps({"id": 1, column: found}).encode())


@pytest.mark.parametrize(
    ("row", "field", "got"),
    [
        ("abc,1,true", "id", '"abc"'),
        (",1,true", "id", "got null"),
        ("9223372036854775808,1,true", "id", "9223372036854775808"),
        ("1,dear,true", "price", '"dear"'),
        ("1,1,perhaps", "paid", '"perhaps"'),
    ],
)
def test_the_check_names_the_cell_that_does_not_fit(row: str, field: str, got: str) -> None:
    good, bad, after = read(f"id,price,paid\n1,1,true\n{row}\n3,3,false\n").values
    check(good)
    check(after)
    with pytest.raises(InvalidEvent, match=got) as invalid:
        check(bad)
    assert invalid.value.field == field


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("2", "1 cells, the header 2"),
        ("2,b,c", "3 cells, the header 2"),
        ('2,"b"c', "not CSV"),
    ],
)
def test_a_row_that_does_not_fit_the_header_is_rejected_alone_as_received(
    row: str, why: str
) -> None:
    unpacked = read(f"id,city\n1,a\n{row}\n3,c\n")
    assert unpacked.values == [b'{"id":1,"city":"a"}', row.encode(), b'{"id":3,"city":"c"}']
    assert list(unpacked.faults) == [1]
    assert why in str(unpacked.faults[1])


def test_a_quote_that_is_never_closed_is_one_fault() -> None:
    unpacked = read('id,city\n1,a\n2,"b\n3,c\n')
    assert unpacked.values == [b'{"id":1,"city":"a"}', b'2,"b\n3,c']
    assert list(unpacked.faults) == [1]


@pytest.mark.parametrize("text", ["", "\n\n", "id,city", "id,city\r\n", "\ufeffid\n\n\n"])
def test_csv_without_rows_has_no_events(text: str) -> None:
    assert read(text).values == []


def test_a_byte_order_mark_and_empty_lines_do_no_harm() -> None:
    assert read("\ufeffid\r\n\r\n1\r\n\r\n2").values == [b'{"id":1}', b'{"id":2}']


@pytest.mark.parametrize(
    ("header", "why"),
    [("id,id", "'id' twice"), ("id,,city", "no name for column 2"), ('"id', "is not CSV")],
)
def test_a_header_that_cannot_be_used_refuses_the_body(header: str, why: str) -> None:
    with pytest.raises(BodyRefused, match=why) as refused:
        read(f"{header}\n1,2,3\n")
    assert refused.value.status == 400


def test_text_that_is_not_utf8_refuses_the_body() -> None:
    with pytest.raises(BodyRefused, match="byte 0xfc at 5"):
        Unpacker(SCHEMA, Limits()).unpack("id\n1,ü".encode("latin-1"), "text/csv")


def test_a_header_with_more_columns_than_any_schema_has_is_refused() -> None:
    header = ",".join(f"c{number}" for number in range(10_001))
    with pytest.raises(BodyRefused, match="has 10,001 columns, of at most 10,000") as refused:
        read(f"{header}\n1\n")
    assert refused.value.status == 400


def test_a_long_header_with_many_rows_is_refused_before_it_fills_memory() -> None:
    header = ",".join(f"column{number}" for number in range(1000))
    row = "," * 999 + "\n"
    with pytest.raises(BodyRefused, match="bytes of JSON") as refused:
        read(f"{header}\n{row * 100}", Limits(max_body=120_000))
    assert refused.value.status == 413


def test_a_long_row_is_rejected_alone() -> None:
    unpacked = read(f"id,city\n1,{'x' * 100}\n2,b\n", Limits(max_line=50))
    assert list(unpacked.faults) == [0]
    assert unpacked.values[1] == b'{"id":2,"city":"b"}'


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**63), 2**63 - 1), st.text(st.characters(exclude_categories=["Cs"]))
        ),
        max_size=5,
    )
)
def test_csv_written_by_python_is_read_back(rows: list[tuple[int, str]]) -> None:
    file = io.StringIO(newline="")
    csv.writer(file).writerows([("id", "city"), *rows])
    unpacked = read(file.getvalue())
    assert not unpacked.faults
    assert [json.loads(value) for value in unpacked.values] == [
        {"id": number, "city": text or None} for number, text in rows
    ]
