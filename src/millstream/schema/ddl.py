"""Reads and writes schemas as Spark DDL: "id LONG NOT NULL, `group` STRUCT<city: STRING>"."""

from __future__ import annotations

import re
from collections.abc import Container

from sqlglot.dialects.spark import Spark
from sqlglot.tokens import Token, TokenType

from millstream.errors import PipelineError
from millstream.schema.types import Array, Field, Map, Primitive, Schema, Struct, Type
from millstream.syntax.names import closest
from millstream.syntax.tokens import Tokens, is_name

_ALIASES = {
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "TIMESTAMP_LTZ": "TIMESTAMP",
}
_PRIMITIVES = (
    *("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE"),
    *("BOOLEAN", "STRING", "BINARY", "DATE", "TIMESTAMP"),
)
_TYPES = {name: _ALIASES.get(name, name).lower() for name in (*_PRIMITIVES, *_ALIASES)}
_DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
_NESTED = {"ARRAY": "ARRAY<TYPE>", "MAP": "MAP<STRING, TYPE>", "STRUCT": "STRUCT<name: TYPE>"}
_INSTEAD = {
    **dict.fromkeys(("VARCHAR", "CHAR", "TEXT", "JSON", "VARIANT"), "STRING"),
    **dict.fromkeys(("TIMESTAMP_NTZ", "DATETIME"), "TIMESTAMP"),
    "BOOL": "BOOLEAN",
}
_SUPPORTED = (
    "TINYINT, SMALLINT, INT, BIGINT (or LONG), FLOAT, DOUBLE, DECIMAL(p,s), BOOLEAN, STRING, "
    "BINARY, DATE, TIMESTAMP, ARRAY<…>, MAP<STRING, …> or STRUCT<name: …>"
)
_FORM = "write 'name TYPE, name TYPE, …'"
_KEYWORDS = {word for phrase in Spark.Tokenizer.KEYWORDS for word in phrase.split()}
# msgspec, which validates events, does not support these in a field's name.
_UNUSABLE = re.compile(r'["\\\x00-\x1f]')


def read_ddl(text: str, reserved: Container[str] = ()) -> Schema:
    """The schema that Spark DDL describes; PipelineError points to the offending part.

    A top-level column may not have a `reserved` name.
    """
    tokens = Tokens(text, "the schema")
    if tokens.next is None:
        raise PipelineError("the schema is empty", remedy="write its columns, as in 'id LONG'")
    try:
        schema = _read_columns(tokens, "", reserved)
    except RecursionError:
        raise PipelineError("the schema is nested too deep", remedy="make it flatter") from None
    if tokens.next is not None:
        raise tokens.unexpected("a comma or the end is expected", _FORM)
    return schema


def check_name(name: str, path: str = "", reserved: Container[str] = ()) -> None:
    """PipelineError if a column cannot have that name."""
    if name.lower() in reserved:
        raise PipelineError(
            f"column {name!r} has a name that Millstream uses itself",
            remedy="rename the field, or leave it out of the schema; events may still have it",
        )
    if not name or _UNUSABLE.search(name):
        raise PipelineError(
            f"column name {path + name!r} is empty, or holds a quote, backslash or control code",
            remedy="leave that column out of the schema; events may still have the field",
        )


def _read_columns(tokens: Tokens, path: str, reserved: Container[str] = ()) -> Struct:
    fields = [_read_column(tokens, path, [], reserved)]
    while tokens.skip(","):
        if tokens.next is None or tokens.next_is(">"):
            break  # a comma after the last column is allowed
        fields.append(_read_column(tokens, path, fields, reserved))
    return Struct(tuple(fields))


def _read_column(tokens: Tokens, path: str, before: list[Field], reserved: Container[str]) -> Field:
    start = tokens.next
    name = tokens.expect_name("a column's name", _FORM)
    try:
        check_name(name, path, reserved)
    except PipelineError as error:
        raise tokens.error(error.message, error.remedy, start) from None
    for other in before:
        if other.name.lower() == name.lower():
            same = "" if other.name == name else f" (Spark takes it for {path + other.name!r})"
            raise tokens.error(
                f"column {path + name!r} is there twice{same}", "leave one out", start
            )
    if not tokens.skip(":") and tokens.next_is("."):
        raise tokens.error(
            f"column {path + name!r} is followed by a dot",
            "put a name with a dot in backquotes; write a nested field as name STRUCT<field: TYPE>",
        )
    of = _read_type(tokens, path + name)
    required, description = False, ""
    while True:
        if tokens.skip("NOT", "NULL"):
            required = True
        elif tokens.skip("COMMENT"):
            token = tokens.advance()
            if token is None or token.token_type is not TokenType.STRING:
                raise tokens.error(
                    f"the COMMENT of column {path + name!r} is not a text in quotes",
                    "write COMMENT 'text'",
                    token,
                )
            description = token.text
        elif not tokens.skip("NULL"):
            return Field(name, of, required, description)


def _read_type(tokens: Tokens, path: str) -> Type:
    token = tokens.next
    if token is None or not is_name(token) or token.token_type is TokenType.IDENTIFIER:
        raise tokens.unexpected(f"a type for column {path!r} is expected", f"write {_SUPPORTED}")
    word = tokens.written(token).upper()
    tokens.advance()
    if word in _NESTED:
        return _read_nested(tokens, word, path)
    if word in _DECIMALS:
        return _read_decimal(tokens, token, path)
    if word not in _TYPES:
        raise _unknown_type(tokens, token, path)
    return Primitive(_TYPES[word])


def _read_nested(tokens: Tokens, word: str, path: str) -> Type:
    remedy = f"write {_NESTED[word]}"
    tokens.expect("<", remedy)
    of: Type
    if word == "ARRAY":
        of = Array(_read_type(tokens, f"{path}[]"))
    elif word == "STRUCT":
        of = _read_columns(tokens, f"{path}.")
    else:
        start = tokens.next
        if _read_type(tokens, path) != Primitive("string"):
            raise tokens.error(
                f"column {path!r} is a map whose keys are not text, as JSON's are", remedy, start
            )
        tokens.expect(",", remedy)
        of = Map(_read_type(tokens, f"{path}[]"))
    tokens.expect(">", remedy)
    return of


def _read_decimal(tokens: Tokens, start: Token, path: str) -> Primitive:
    numbers = [10, 0]
    if tokens.skip("("):
        for index in (0, 1):
            token = tokens.advance()
            if token is None or not token.text.isdigit():
                raise tokens.error(
                    f"column {path!r} is no DECIMAL(p,s)", "write DECIMAL(10,2)", token
                )
            numbers[index] = int(token.text)
            if not tokens.skip(","):
                break
        tokens.expect(")", "write DECIMAL(10,2)")
    precision, scale = numbers
    if not 1 <= precision <= 38 or scale > precision:
        raise tokens.error(
            f"column {path!r} is DECIMAL({precision},{scale})",
            "write DECIMAL(p,s) with p from 1 to 38 and s from 0 to p",
            start,
        )
    return Primitive(f"decimal({precision},{scale})")


def _unknown_type(tokens: Tokens, token: Token, path: str) -> PipelineError:
    word = tokens.written(token)
    instead = _INSTEAD.get(word.upper())
    close = closest(word, (*_TYPES, *_DECIMALS, *_NESTED))
    if instead:
        remedy = f"write {instead}"
    else:
        remedy = f"did you mean {close}?" if close else f"write {_SUPPORTED}"
    return tokens.error(
        f"column {path!r} has the type {word}, which a stream cannot have", remedy, token
    )


def to_ddl(schema: Schema) -> str:
    """The schema as Spark DDL, with backquotes where a name needs them."""
    return ", ".join(_column_ddl(field, " ") for field in schema.fields)


def type_ddl(of: Type) -> str:
    """The type as Spark DDL."""
    match of:
        case Primitive(name):
            return name
        case Array(element):
            return f"array<{type_ddl(element)}>"
        case Map(value):
            return f"map<string, {type_ddl(value)}>"
        case Struct(fields):
            return f"struct<{', '.join(_column_ddl(field, ': ') for field in fields)}>"


def _column_ddl(field: Field, between: str) -> str:
    required = " NOT NULL" if field.required else ""
    text = field.description.replace("\\", "\\\\").replace("'", "\\'")
    comment = f" COMMENT '{text}'" if text else ""
    return f"{quote(field.name)}{between}{type_ddl(field.type)}{required}{comment}"


def quote(name: str) -> str:
    """The name in SQL: in backquotes unless it is a plain word and no keyword."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and name.upper() not in _KEYWORDS:
        return name
    return f"`{name.replace('`', '``')}`"
