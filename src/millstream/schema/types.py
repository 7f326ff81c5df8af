"""The tree of types that events can have."""

from __future__ import annotations

from dataclasses import dataclass

INTEGERS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}  # name → bits


@dataclass(frozen=True, slots=True)
class Primitive:
    """A Spark type without parts, by its DDL name: `bigint`, `string`, `decimal(10,2)` …"""

    name: str

    @property
    def decimal(self) -> tuple[int, int] | None:
        """Precision and scale, if it is a decimal."""
        if not self.name.startswith("decimal("):
            return None
        precision, scale = self.name.removeprefix("decimal(").removesuffix(")").split(",")
        return int(precision), int(scale)


@dataclass(frozen=True, slots=True)
class Array:
    element: Type


@dataclass(frozen=True, slots=True)
class Map:
    """Keys are strings, as JSON has no others."""

    value: Type


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: Type
    required: bool
    description: str = ""


@dataclass(frozen=True, slots=True)
class Struct:
    fields: tuple[Field, ...]

    def field(self, name: str) -> Field | None:
        """The field of that name, if there is one."""
        return next((field for field in self.fields if field.name == name), None)


Type = Primitive | Array | Map | Struct
Schema = Struct
