"""Schemas, by DDL and by class."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, Optional

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import PipelineError
from millstream.schema import (
    Array,
    Field,
    Map,
    Primitive,
    Schema,
    Struct,
    Type,
    json_schema,
    parse_schema,
    to_ddl,
)

names = st.one_of(
    st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True),
    st.sampled_from(["group", "select", "a.b", "ein Maß", "back`tick", "from", "1st", "x'y", "-"]),
)
comments = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=10)
decimals = st.integers(1, 38).flatmap(
    lambda p: st.integers(0, p).map(lambda s: Primitive(f"decimal({p},{s})"))
)
primitives = decimals | st.sampled_from(
    [
        "tinyint",
        "smallint",
        "int",
        "bigint",
        "float",
        "double",
        "boolean",
        "string",
        "binary",
        "date",
        "timestamp",
    ]
).map(Primitive)


def structs(types: st.SearchStrategy[Type]) -> st.SearchStrategy[Struct]:
    fields = st.builds(Field, names, types, st.booleans(), comments)
    return st.lists(fields, min_size=1, max_size=4, unique_by=lambda f: f.name.lower()).map(
        lambda each: Struct(tuple(each))
    )


types: st.SearchStrategy[Type] = st.recursive(
    primitives, lambda inner: inner.map(Array) | inner.map(Map) | structs(inner), max_leaves=8
)
schemas = structs(types)


@given(schemas)
def test_a_schema_reads_back_from_its_ddl(schema: Schema) -> None:
    assert parse_schema(to_ddl(schema)) == schema


@pytest.mark.parametrize(
    ("ddl", "means"),
    [
        ("a LONG", Field("a", Primitive("bigint"), False)),
        ("a integer not null", Field("a", Primitive("int"), True)),
        ("`a b` STRING", Field("a b", Primitive("string"), False)),
        ("a: DOUBLE", Field("a", Primitive("double"), False)),
        ("group STRING", Field("group", Primitive("string"), False)),
        ("a DECIMAL", Field("a", Primitive("decimal(10,0)"), False)),
        ("a NUMERIC(7)", Field("a", Primitive("decimal(7,0)"), False)),
        ("a ARRAY<ARRAY<INT>>", Field("a", Array(Array(Primitive("int"))), False)),
        ("a MAP<STRING, DATE>", Field("a", Map(Primitive("date")), False)),
        ("a INT COMMENT 'it\\'s; -- x'", Field("a", Primitive("int"), False, "it's; -- x")),
        ("-- first\n a INT, -- last", Field("a", Primitive("int"), False)),
        (
            "a STRUCT<b STRING NOT NULL, c: BYTE>",
            Field(
                "a",
                Struct(
                    (Field("b", Primitive("string"), True), Field("c", Primitive("tinyint"), False))
                ),
                False,
            ),
        ),
    ],
)
def test_ddl_is_read_as_spark_reads_it(ddl: str, means: Field) -> None:
    assert parse_schema(ddl) == Struct((means,))


@pytest.mark.parametrize(
    ("ddl", "line", "says"),
    [
        ("", 0, "the schema is empty"),
        ("  -- nothing", 0, "the schema is empty"),
        ("a LONGG", 1, "'a' has the type LONGG, which a stream cannot have; did you mean LONG?"),
        ("a INT,\nb STRUCT<c: STRNG>", 2, "'b.c' has the type STRNG"),
        ("a VARCHAR(3)", 1, "write STRING"),
        ("a TIMESTAMP_NTZ", 1, "write TIMESTAMP"),
        ("a FROBNICATE", 1, "write TINYINT, SMALLINT"),
        ("a", 1, "a type for column 'a' is expected, but the text ends"),
        ("a INT\nb STRING", 2, "a comma or the end is expected, not 'b'"),
        ("a INT,\n\nA STRING", 3, "'A' is there twice (Spark takes it for 'a')"),
        ("a STRUCT<b: INT, b: INT>", 1, "'a.b' is there twice"),
        ("a STRUCT<b: INT", 1, "'>' is expected, but the text ends"),
        ("a STRUCT<>", 1, "'<' is expected"),
        ("a ARRAY", 1, "write ARRAY<TYPE>"),
        ("a MAP<INT, STRING>", 1, "a map whose keys are not text"),
        ("a DECIMAL(39,2)", 1, "p from 1 to 38"),
        ("a DECIMAL(3,4)", 1, "p from 1 to 38"),
        ("a DECIMAL(x)", 1, "write DECIMAL(10,2)"),
        ("a.b INT", 1, "put a name with a dot in backquotes"),
        ("a INT COMMENT x", 1, "not a text in quotes"),
        ("a INT DEFAULT 4", 1, "not 'DEFAULT'"),
        ("a INT, 'b' STRING", 1, "a column's name is expected, not \"'b'\""),
        ("a INT,\n`b STRING", 2, "a quote or comment that is not closed: '`b STRING'"),
        ('`a"b` INT', 1, "holds a quote"),
        ("a INT); DROP TABLE x; --", 1, "not ')'"),
        ("a " + "ARRAY<" * 5000, 0, "nested too deep"),
    ],
)
def test_bad_ddl_is_refused_with_the_line(ddl: str, line: int, says: str) -> None:
    with pytest.raises(PipelineError) as caught:
        parse_schema(ddl)
    assert says in str(caught.value)
    assert caught.value.line == line


class Colour(enum.StrEnum):
    RED = "red"


@dataclass
class Topic:
    name: str
    weight: float = 1.0


@dataclass
class Rsvp:
    id: int
    at: datetime
    day: date
    price: Decimal
    yes: bool
    note: str | None
    topics: list[Topic]
    tags: dict[str, Optional[int]]  # noqa: UP045 - both spellings of it must work
    answer: Literal["yes", "no"]
    colour: Colour = Colour.RED
    path: tuple[int, ...] = field(default_factory=tuple)


def test_a_dataclass_is_a_schema() -> None:
    assert to_ddl(parse_schema(Rsvp)) == (
        "id bigint NOT NULL, at timestamp NOT NULL, day date NOT NULL, "
        "price decimal(38,18) NOT NULL, yes boolean NOT NULL, note string, "
        "topics array<struct<name: string NOT NULL, weight: double>> NOT NULL, "
        "tags map<string, bigint> NOT NULL, answer string NOT NULL, colour string, "
        "path array<bigint>"
    )


def test_a_struct_and_a_model_give_the_same_as_a_dataclass_with_their_names_in_json() -> None:
    class Event(msgspec.Struct, rename="camel"):
        event_id: int
        raw: bytes = b""

    class Model(pydantic.BaseModel):
        event_id: Annotated[int, pydantic.Field(alias="eventId", ge=0)]
        raw: bytes = b""

    expected = Struct(
        (
            Field("eventId", Primitive("bigint"), True),
            Field("raw", Primitive("binary"), False),
        )
    )
    assert parse_schema(Event) == parse_schema(Model) == expected


@dataclass
class Loop:
    inner: list[Loop]


def _make(annotation: Any) -> Callable[[], object]:
    return lambda: type("Made", (msgspec.Struct,), {"__annotations__": {"x": annotation}})


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: int, "the class int cannot be a schema; give Spark DDL as text, or a dataclass"),
        (lambda: 5, "a int cannot be a schema"),
        (lambda: Rsvp.__init__, "cannot be a schema"),
        (lambda: Loop, "class Loop contains itself at 'inner[]'"),
        (_make(set[int]), "attribute 'x' has the type set[int]"),
        (_make(dict[int, str]), "attribute 'x' has the type dict[int, str]"),
        (_make(int | str), "attribute 'x' has the type int | str"),
        (_make(list[complex]), "attribute 'x[]' has the type complex"),
        (_make(Any), "attribute 'x' has the type Any"),
        (lambda: type("Empty", (msgspec.Struct,), {}), "class Empty has no attributes"),
    ],
)
def test_a_class_that_cannot_be_a_schema_is_refused(made: Callable[[], object], says: str) -> None:
    with pytest.raises(PipelineError) as caught:
        parse_schema(made())
    assert says in str(caught.value)


def test_the_json_schema_accepts_what_the_validator_accepts() -> None:
    schema = parse_schema(
        "id SMALLINT NOT NULL COMMENT 'who', at TIMESTAMP, m MAP<STRING, ARRAY<DECIMAL(4,2)>>"
    )
    assert json_schema(schema) == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "required": ["id"],
        "properties": {
            "id": {"type": "integer", "minimum": -32768, "maximum": 32767, "description": "who"},
            "at": {
                "anyOf": [
                    {"type": "string", "format": "date-time"},
                    {"type": "integer"},
                    {"type": "null"},
                ],
                "description": "RFC 3339 text with an offset, or milliseconds (from 10^11 on) "
                "or seconds",
            },
            "m": {
                "type": ["object", "null"],
                "additionalProperties": {
                    "type": ["array", "null"],
                    "items": {
                        "anyOf": [{"type": "number"}, {"type": "string"}, {"type": "null"}],
                        "description": "decimal(4,2)",
                    },
                },
            },
        },
    }
