"""Hypothesis strategies for schemas and the events that fit them."""

from __future__ import annotations

import base64
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from hypothesis import strategies as st

from millstream.schema import Array, Field, Map, Primitive, Schema, Struct, Type
from millstream.schema.types import INTEGERS


def values(of: Type) -> st.SearchStrategy[Any]:
    """All values of a type, as Python's json writes them."""
    match of:
        case Struct(fields):
            required = {f.name: values(f.type) for f in fields if f.required}
            optional = {f.name: st.none() | values(f.type) for f in fields if not f.required}
            return st.fixed_dictionaries(required, optional=optional)
        case Array(element):
            return st.lists(st.none() | values(element), max_size=3)
        case Map(value):
            return st.dictionaries(st.text(max_size=5), st.none() | values(value), max_size=3)
        case Primitive(name) if name in INTEGERS:
            bound = 2 ** (INTEGERS[name] - 1)
            return st.integers(-bound, bound - 1)
        case Primitive() if of.decimal:
            whole = of.decimal[0] - of.decimal[1]
            numbers = st.decimals(
                -(Decimal(10) ** whole) + 1, Decimal(10) ** whole - 1, places=of.decimal[1]
            )
            return numbers.map(str) | numbers.map(int)
        case Primitive(name):
            return PRIMITIVES[name]


times = st.datetimes(min_value=datetime(1, 1, 2), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis needs it without zone
PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "float": st.floats(allow_nan=False, allow_infinity=False, width=32),
    "double": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**80), 2**80),
    "string": st.text(st.characters(exclude_categories=["Cs"])),
    "binary": st.binary().map(lambda data: base64.b64encode(data).decode()),
    "date": st.dates().map(date.isoformat),
    "timestamp": times.map(datetime.isoformat) | st.integers(-62_135_596_800, 253_402_300_799_999),
}
plain = st.sampled_from([*PRIMITIVES, *INTEGERS, "decimal(38,18)", "decimal(5,2)"]).map(Primitive)
names = st.sampled_from(["a", "b", "group", "a.b", "x y", "ü", "select"])


def structs(inner: st.SearchStrategy[Type]) -> st.SearchStrategy[Struct]:
    fields = st.builds(Field, names, inner, st.booleans())
    return st.lists(fields, min_size=1, max_size=4, unique_by=lambda each: each.name).map(
        lambda each: Struct(tuple(each))
    )


types: st.SearchStrategy[Type] = st.recursive(
    plain, lambda inner: inner.map(Array) | inner.map(Map) | structs(inner), max_leaves=6
)


class Case(NamedTuple):
    schema: Schema
    event: dict[str, Any]


cases = structs(types).flatmap(lambda schema: values(schema).map(lambda event: Case(schema, event)))
