"""Reads a schema from a class: a dataclass, a msgspec Struct or a pydantic model."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Container, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple, Union

import msgspec
import pydantic

from millstream.errors import PipelineError
from millstream.schema.ddl import check_name
from millstream.schema.types import Array, Field, Map, Primitive, Schema, Struct, Type

_PRIMITIVES: dict[object, Primitive] = {
    bool: Primitive("boolean"),
    int: Primitive("bigint"),
    float: Primitive("double"),
    str: Primitive("string"),
    bytes: Primitive("binary"),
    datetime: Primitive("timestamp"),
    date: Primitive("date"),
    Decimal: Primitive("decimal(38,18)"),
}
_SUPPORTED = (
    "use bool, int, float, str, bytes, datetime, date, Decimal, list[…], dict[str, …], "
    "or another such class"
)


class _Attribute(NamedTuple):
    name: str  # in the JSON of an event
    annotation: Any
    has_default: bool


def read_class(cls: object, reserved: Container[str] = ()) -> Schema:
    """The schema of a class's attributes; PipelineError names the attribute that is unusable.

    A top-level attribute may not have a `reserved` name.
    """
    if not isinstance(cls, type) or not _is_record(cls):
        kind = f"the class {cls.__name__}" if isinstance(cls, type) else f"a {type(cls).__name__}"
        raise PipelineError(
            f"{kind} cannot be a schema",
            remedy="give Spark DDL as text, or a dataclass, a msgspec Struct or a pydantic model",
        )
    return _read(cls, "", (), reserved)


def _is_record(cls: type) -> bool:
    return dataclasses.is_dataclass(cls) or issubclass(cls, (msgspec.Struct, pydantic.BaseModel))


def _read(cls: type, path: str, inside: tuple[type, ...], reserved: Container[str] = ()) -> Struct:
    if cls in inside:
        raise PipelineError(
            f"class {cls.__name__} contains itself at {path.rstrip('.')!r}",
            remedy="a schema has a fixed depth; leave that attribute out",
        )
    fields: list[Field] = []
    for name, annotation, has_default in _attributes(cls):
        check_name(name, path, reserved)
        if any(field.name.lower() == name.lower() for field in fields):
            raise PipelineError(
                f"class {cls.__name__} has {path + name!r} twice (Spark ignores case)",
                remedy="leave one out",
            )
        kind, optional = _optional(annotation)
        of = _type(kind, path + name, (*inside, cls))
        fields.append(Field(name, of, required=not (has_default or optional)))
    if not fields:
        raise PipelineError(
            f"class {cls.__name__} has no attributes", remedy="a schema needs at least one column"
        )
    return Struct(tuple(fields))


def _attributes(cls: type) -> Iterator[_Attribute]:
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
        if issubclass(cls, msgspec.Struct):
            for field in msgspec.structs.fields(cls):
                yield _Attribute(field.encode_name, hints[field.name], not field.required)
        elif issubclass(cls, pydantic.BaseModel):
            for name, info in cls.model_fields.items():
                alias = info.validation_alias if isinstance(info.validation_alias, str) else None
                yield _Attribute(alias or info.alias or name, hints[name], not info.is_required())
        else:
            for each in dataclasses.fields(cls):  # type: ignore[arg-type]
                has_default = (
                    each.default is not dataclasses.MISSING
                    or each.default_factory is not dataclasses.MISSING
                )
                yield _Attribute(each.name, hints[each.name], has_default)
    except NameError as error:
        raise PipelineError(
            f"class {cls.__name__} has an annotation that cannot be resolved: {error}",
            remedy="define or import that name at the top of the file",
        ) from None


def _optional(annotation: Any) -> tuple[Any, bool]:
    """The annotation without `Annotated` and `None`, and whether it allowed None."""
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (Union, types.UnionType):
        parts = [part for part in typing.get_args(annotation) if part is not type(None)]
        if len(parts) < len(typing.get_args(annotation)) and len(parts) == 1:
            return _optional(parts[0])[0], True
    return annotation, False


def _type(annotation: Any, path: str, inside: tuple[type, ...]) -> Type:
    annotation, _ = _optional(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _PRIMITIVES:
        return _PRIMITIVES[annotation]
    if origin in (list, Sequence) and len(arguments) == 1:
        return Array(_type(arguments[0], f"{path}[]", inside))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return Array(_type(arguments[0], f"{path}[]", inside))
    if origin in (dict, Mapping) and arguments[0] is str:
        return Map(_type(arguments[1], f"{path}[]", inside))
    if origin is Literal and all(isinstance(value, str) for value in arguments):
        return Primitive("string")
    if isinstance(annotation, type):
        if _is_record(annotation):
            return _read(annotation, f"{path}.", inside)
        if issubclass(annotation, enum.Enum) and issubclass(annotation, str):
            return Primitive("string")
    written = getattr(annotation, "__name__", None) if origin is None else None
    raise PipelineError(
        f"attribute {path!r} has the type {written or annotation}, which a schema cannot have",
        remedy=_SUPPORTED,
    )
