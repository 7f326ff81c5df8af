"""The types of event fields, as a tree."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    """An array; its elements may be null."""

    element: Type


@dataclass(frozen=True, slots=True)
class Map:
    """A map. Its keys are strings, because JSON has no others."""

    value: Type


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a struct, or a column of a schema."""

    name: str
    type: Type
    required: bool
    description: str = ""


@dataclass(frozen=True, slots=True)
class Struct:
    """Named fields; at the top level, a schema."""

    fields: tuple[Field, ...]

    def field(self, name: str) -> Field | None:
        """The field of that name, if there is one."""
        return next((field for field in self.fields if field.name == name), None)

    def requiring(self, *names: str | None) -> Struct:
        """The same fields, with those of these names required."""
        return Struct(
            tuple(
                replace(each, required=True) if each.name in names else each for each in self.fields
            )
        )


Type = Primitive | Array | Map | Struct
Schema = Struct
