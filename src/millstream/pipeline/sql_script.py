"""Loads a pipeline that is an SQL script of CREATE STREAM, VIEW and QUERY statements.

CREATE APP meetup;                      -- optional: the file's name without .sql if left out
CREATE STREAM rsvps (rsvp_id LONG, mtime TIMESTAMP)
  WITH (key = 'rsvp_id', event_time = 'mtime', source = 'ws://127.0.0.1:8600/rsvps');
CREATE VIEW per_minute WITH (key = 'window', keep = '3 hours') AS
  SELECT window(mtime, '1 minute') AS window, count(*) AS n FROM rsvps GROUP BY 1;
CREATE QUERY busiest (n = 3) AS SELECT * FROM per_minute ORDER BY n DESC LIMIT :n;
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlglot.tokens import Token, TokenType

from millstream.errors import PipelineError
from millstream.pipeline.app import App
from millstream.syntax.source_location import SourceLocation
from millstream.syntax.tokens import Tokens, line_at

_FORMS = {
    "STREAM": "CREATE STREAM name (column TYPE, …) WITH (key = 'column', …);",
    "VIEW": "CREATE VIEW name WITH (key = 'column', …) AS SELECT …;",
    "QUERY": "CREATE QUERY name (parameter = 50, …) AS SELECT …;",
    "APP": "CREATE APP name;",
}
# Words of other databases.
_INSTEAD = {"TABLE": "STREAM", "SOURCE": "STREAM", "TOPIC": "STREAM", "MATERIALIZED": "VIEW"}
# Options that are part of the statement itself in SQL.
_OUTSIDE = {"schema", "sql", "name"}
# Types of parameters; users may write the words of Spark or of DuckDB.
_TYPES: dict[str, type] = {
    **dict.fromkeys(("STRING", "VARCHAR", "TEXT"), str),
    **dict.fromkeys(("INTEGER", "INT", "BIGINT", "LONG"), int),
    **dict.fromkeys(("NUMBER", "DOUBLE", "FLOAT"), float),
    **dict.fromkeys(("BOOLEAN", "BOOL"), bool),
}
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}


@dataclass(slots=True)
class SqlStatement:
    """One statement of a script, with the line of each of its options."""

    location: SourceLocation
    lines: dict[str, int] = field(default_factory=dict)

    def line_of(self, option: str, line: int = 1) -> int:
        return self.lines.get(option, self.location.line) + line - 1


def read_script(text: str, file: str) -> App:
    """The app that a script declares; PipelineError with the script's line."""
    try:
        return _Script(text, file).read()
    except PipelineError as error:
        if error.file:
            raise
        raise PipelineError(
            error.message, remedy=error.remedy, file=file, line=error.line
        ) from None


class _Script:
    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.tokens = Tokens(text, "the script")

    def read(self) -> App:
        app = self._read_app()
        while True:
            while self.tokens.skip(";"):
                pass
            if self.tokens.next is None:
                return app
            self._read_statement(app)

    def _read_app(self) -> App:
        while self.tokens.skip(";"):
            pass
        statement = self._statement()
        name = Path(self.file).stem
        if self.tokens.skip("CREATE", "APP"):
            name = self.tokens.expect_name("the app's name", _FORMS["APP"])
            self._end("APP", statement)
            return App.declared_by(statement, name)
        try:
            return App.declared_by(statement, name)
        except PipelineError as error:
            raise PipelineError(
                f"the file's name gives the app's, but {error.message}",
                remedy="write CREATE APP name; as the first statement, or rename the file",
                file=self.file,
                line=1,
            ) from None

    def _read_statement(self, app: App) -> None:
        statement = self._statement()
        if self.tokens.skip("CREATE", "STREAM"):
            self._read_stream(app, statement)
        elif self.tokens.skip("CREATE", "VIEW"):
            self._read_view(app, statement)
        elif self.tokens.skip("CREATE", "QUERY"):
            self._read_query(app, statement)
        elif self.tokens.next_is("CREATE", "APP"):
            raise self.tokens.error(
                "CREATE APP does not stand first", "move it to the top, and leave one only"
            )
        else:
            raise self._unknown_statement()

    def _unknown_statement(self) -> PipelineError:
        words = [self.tokens.written(token) for token in self.tokens.ahead(2)]
        found = " ".join(words if words[0].upper() == "CREATE" else words[:1])
        form = _FORMS[_INSTEAD.get(words[-1].upper(), "STREAM")]
        remedy = f"write {form}"
        if words[-1].upper() not in _INSTEAD:
            remedy = f"write {_FORMS['STREAM']} or {_FORMS['VIEW']}"
        return self.tokens.error(
            f"a script has CREATE STREAM, VIEW and QUERY statements, but here is {found!r}", remedy
        )

    def _read_stream(self, app: App, statement: SqlStatement) -> None:
        name = self.tokens.expect_name("the stream's name", _FORMS["STREAM"])
        opening = self.tokens.expect("(", _FORMS["STREAM"])
        closing = self._skip_to_closing(opening)
        statement.lines["schema"] = line_at(self.text, opening.start)
        options = self._read_options(statement, "STREAM")
        self._end("STREAM", statement)
        schema = self.text[opening.end + 1 : closing.start]
        app.add_stream(statement, name, {**options, "schema": schema})

    def _read_view(self, app: App, statement: SqlStatement) -> None:
        name = self.tokens.expect_name("the view's name", _FORMS["VIEW"])
        options = self._read_options(statement, "VIEW")
        app.add_view(statement, name, {**options, "sql": self._read_select(statement, "VIEW")})

    def _read_query(self, app: App, statement: SqlStatement) -> None:
        name = self.tokens.expect_name("the query's name", _FORMS["QUERY"])
        parameters = self._read_parameters(statement)
        options = self._read_options(statement, "QUERY")
        options["sql"] = self._read_select(statement, "QUERY")
        app.add_query(statement, name, options, parameters)

    def _read_select(self, statement: SqlStatement, kind: str) -> str:
        """The text after AS, up to the statement's end."""
        self.tokens.expect("AS", _FORMS[kind])
        first = last = self.tokens.next
        if first is None or first.token_type is TokenType.SEMICOLON:
            raise self.tokens.unexpected("a SELECT is expected", _FORMS[kind])
        while (token := self.tokens.next) and token.token_type is not TokenType.SEMICOLON:
            if self._begins_statement():
                raise self._missing_semicolon(statement, last)
            last = self.tokens.advance()
        assert last is not None
        self.tokens.skip(";")
        statement.lines["sql"] = line_at(self.text, first.start)
        return self.text[first.start : last.end + 1]

    def _read_parameters(self, statement: SqlStatement) -> dict[str, Any]:
        """Names with their defaults: `(n = 50, city STRING = NULL)`."""
        parameters: dict[str, Any] = {}
        if not self.tokens.skip("("):
            return parameters
        while not self.tokens.skip(")"):
            start = self.tokens.next
            name = self.tokens.expect_name("a parameter", _FORMS["QUERY"])
            statement.lines[name] = line_at(self.text, start.start if start else 0)
            if name in parameters:
                raise self.tokens.error(f"parameter {name!r} is there twice", "leave one", start)
            parameters[name] = self._read_parameter(name)
            if not self.tokens.skip(",") and not self.tokens.next_is(")"):
                raise self.tokens.unexpected("a comma or ')' is expected", _FORMS["QUERY"])
        return parameters

    def _read_parameter(self, name: str) -> Any:
        """A default; a type if it is NULL. `city STRING` alone means NULL too."""
        remedy = f"write {name} = 50, or {name} STRING = NULL"
        type_ = None if self.tokens.next_is("=") else self._read_type(remedy)
        if not self.tokens.skip("="):
            if type_ is None:
                raise self.tokens.unexpected("'=' is expected", remedy)
            return type_
        start, default = self.tokens.next, self._read_constant(remedy)
        if default is None or type_ is None:
            return type_ or default
        if type_ is float and type(default) is int:
            return float(default)
        if type(default) is not type_:
            written = self.tokens.written(start) if start else ""
            raise self.tokens.error(f"{written} is not of the type of {name!r}", remedy, start)
        return default

    def _read_type(self, remedy: str) -> type:
        token = self.tokens.next
        found = _TYPES.get(token.text.upper()) if token else None
        if found is None:
            raise self.tokens.unexpected("'=' or a type is expected", remedy)
        self.tokens.advance()
        return found

    def _read_constant(self, remedy: str) -> str | int | float | bool | None:
        is_negative = self.tokens.skip("-")
        token = self.tokens.next
        if token is not None and token.token_type is TokenType.NUMBER:
            self.tokens.advance()
            number = int(token.text) if token.text.isdigit() else float(token.text)
            return -number if is_negative else number
        if token is not None and token.token_type is TokenType.STRING and not is_negative:
            self.tokens.advance()
            return token.text
        if token is None or is_negative or token.text.upper() not in _CONSTANTS:
            raise self.tokens.unexpected("a text in quotes or a number is expected", remedy)
        self.tokens.advance()
        return _CONSTANTS[token.text.upper()]

    def _read_options(self, statement: SqlStatement, kind: str) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if not self.tokens.skip("WITH"):
            return options
        self.tokens.expect("(", _FORMS[kind])
        while not self.tokens.skip(")"):
            start = self.tokens.next
            name = self.tokens.expect_name("an option", _FORMS[kind]).lower()
            statement.lines[name] = line_at(self.text, start.start if start else 0)
            if name in options:
                raise self.tokens.error(f"option {name!r} is there twice", "leave one out", start)
            self.tokens.expect("=", f"write {name} = 'value'")
            options[name] = self._read_value(name)
            if not self.tokens.skip(",") and not self.tokens.next_is(")"):
                raise self.tokens.unexpected("a comma or ')' is expected", _FORMS[kind])
        for name in _OUTSIDE & options.keys():
            raise PipelineError(
                f"{name} is not written in WITH",
                remedy=f"write {_FORMS[kind]}",
                line=statement.lines[name],
            )
        return options

    def _read_value(self, option: str) -> Any:
        """A text, a list of texts, or names with texts."""
        if not self.tokens.skip("("):
            return self._read_text(option)
        values: list[str] = []
        named: dict[str, str] = {}
        while not self.tokens.skip(")"):
            token = self.tokens.next
            text = (
                self._read_text(option)
                if token and token.token_type is TokenType.STRING
                else self.tokens.expect_name("a text in quotes", f"write {option} = ('a', 'b')")
            )
            if self.tokens.skip("="):
                named[text] = self._read_text(option)
            else:
                values.append(text)
            if not self.tokens.skip(",") and not self.tokens.next_is(")"):
                raise self.tokens.unexpected(
                    "a comma or ')' is expected", f"write {option} = ('a', 'b')"
                )
        return named or values

    def _read_text(self, option: str) -> str:
        token = self.tokens.next
        if token is None or token.token_type is not TokenType.STRING:
            raise self.tokens.unexpected(
                f"a text in quotes is expected for {option}", f"write {option} = 'value'"
            )
        self.tokens.advance()
        return token.text

    def _skip_to_closing(self, opening: Token) -> Token:
        depth = 1
        while token := self.tokens.advance():
            depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
            if depth == 0:
                return token
            if token.token_type is TokenType.SEMICOLON:
                break
        raise self.tokens.error("the parenthesis is not closed", "add the missing ')'", opening)

    def _begins_statement(self) -> bool:
        return any(self.tokens.next_is("CREATE", kind) for kind in (*_FORMS, *_INSTEAD))

    def _missing_semicolon(self, statement: SqlStatement, last: Token | None) -> PipelineError:
        line = line_at(self.text, last.end) if last else statement.location.line
        return self.tokens.error(
            f"the statement in line {statement.location.line} has no semicolon at its end",
            f"write ; at the end of line {line}",
            last,
        )

    def _end(self, kind: str, statement: SqlStatement) -> None:
        if self._begins_statement():
            raise self._missing_semicolon(statement, self.tokens.before)
        if not self.tokens.skip(";") and self.tokens.next is not None:
            raise self.tokens.unexpected("';' is expected", f"write {_FORMS[kind]}")

    def _statement(self) -> SqlStatement:
        token = self.tokens.next
        return SqlStatement(
            SourceLocation(self.file, line_at(self.text, token.start) if token else 1)
        )
