"""Parses the return types of Python functions without Spark.

`@F.udf("string")` at the top of a pipeline makes pyspark ask a JVM what "string" means. A pipeline
is loaded before a JVM runs, so this module parses the text instead.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from millstream.errors import PipelineError
from millstream.syntax.names import closest

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_NAMES = {
    "TINYINT": "ByteType",
    "SMALLINT": "ShortType",
    "INT": "IntegerType",
    "BIGINT": "LongType",
    "FLOAT": "FloatType",
    "DOUBLE": "DoubleType",
    "STRING": "StringType",
    "BINARY": "BinaryType",
    "BOOLEAN": "BooleanType",
    "DATE": "DateType",
    "TIMESTAMP": "TimestampType",
    "TIMESTAMP_NTZ": "TimestampNTZType",
    "VARIANT": "VariantType",
}
_ALIASES = ("long", "short", "byte", "integer", "decimal", "array", "map", "struct")
_COLUMNS = re.compile(r"\s*(?:`[^`]+`|\w+)\s*(?::|\s)\s*\w")  # "name TYPE" or "name: TYPE"


@contextlib.contextmanager
def parse_return_types_without_spark() -> Iterator[None]:
    """Let pyspark accept return types as text while no Spark runs."""
    from pyspark.sql import udf, udtf

    modules: list[Any] = [udf, udtf]
    originals = [module._parse_datatype_string for module in modules]
    for module in modules:
        module._parse_datatype_string = parse_return_type
    try:
        with warnings.catch_warnings():
            # pyspark warns about every plain function that has type hints.
            warnings.filterwarnings("ignore", message="Cannot infer the eval type")
            yield
    finally:
        for module, original in zip(modules, originals, strict=True):
            module._parse_datatype_string = original


def parse_return_type(text: str) -> DataType:
    """The type, or the columns of a struct, that the text describes; PipelineError if none does."""
    written = f"struct<{text}>" if _COLUMNS.match(text) else text
    try:
        tree = exp.DataType.build(written, dialect="spark")
        if text.count("<") != text.count(">"):  # sqlglot accepts that
            raise ValueError(text)
        return _type(tree)
    except (SqlglotError, ValueError, LookupError):
        close = closest(text.strip(), (*(name.lower() for name in _NAMES), *_ALIASES))
        remedy = (
            f"did you mean {close!r}?" if close else "write a type of Spark SQL, as in 'string'"
        )
        raise PipelineError(f"{text!r} is no return type of a function", remedy=remedy) from None


def _type(of: exp.DataType) -> DataType:
    from pyspark.sql import types

    match of.this:
        case exp.DType.ARRAY:
            return types.ArrayType(_type(of.expressions[0]))
        case exp.DType.MAP:
            key, value = of.expressions
            return types.MapType(_type(key), _type(value))
        case exp.DType.STRUCT:
            return types.StructType([_field(each) for each in of.expressions])
        case exp.DType.DECIMAL:
            return types.DecimalType(*(int(each.name) for each in of.expressions))
    made: DataType = getattr(types, _NAMES[of.sql("spark")])()
    return made


def _field(column: exp.Expr) -> Any:
    from pyspark.sql import types

    if not isinstance(column, exp.ColumnDef) or column.kind is None:
        raise ValueError(column)
    required = any(
        isinstance(each.kind, exp.NotNullColumnConstraint) and not each.kind.args.get("allow_null")
        for each in column.constraints
    )
    return types.StructField(column.name, _type(column.kind), nullable=not required)
