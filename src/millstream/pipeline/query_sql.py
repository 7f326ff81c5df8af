"""Parses the SQL of a named query, without running it. DuckDB checks it again when it is served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.optimizer.scope import Scope, traverse_scope
from sqlglot.tokens import Token, TokenType

from millstream.errors import PipelineError
from millstream.pipeline.view_sql import parse_one_select
from millstream.syntax.tokens import is_name, line_at, split_tokens

_ENDS_OF_VALUES = (
    TokenType.NUMBER,
    TokenType.STRING,
    TokenType.IDENTIFIER,
    TokenType.VAR,
    TokenType.R_PAREN,
    TokenType.R_BRACKET,
    TokenType.R_BRACE,
)


@dataclass(frozen=True, slots=True)
class QuerySql:
    """What is known about a named query from its text."""

    text: str  # for DuckDB: `$n` in place of `:n`
    tables: tuple[str, ...]
    columns: tuple[str, ...] | None  # None: unknown (SELECT *)
    parameters: tuple[str, ...]  # that it uses, in order


def parse_query(sql: str) -> QuerySql:
    """The tables, columns and parameters of a SELECT; PipelineError (without a file) if it is none.

    A parameter is written `:n`.
    """
    tokens = split_tokens(sql, "the sql", DuckDB())
    colons = [at for at in range(len(tokens) - 1) if _is_parameter(tokens, at)]
    text = _with_dollars(sql, [tokens[at] for at in colons])
    for at in colons:
        tokens[at] = _dollar(tokens[at])
    tree = parse_one_select(DuckDB(), tokens, sql, "DuckDB's SQL")
    tables = _tables(tree, sql)
    if not tables:
        raise PipelineError("the sql reads no view", remedy="write FROM and its name")
    names = [each.output_name for each in tree.selects]
    known = None if any(each.is_star for each in tree.selects) else tuple(names)
    return QuerySql(text, tables, known, tuple(dict.fromkeys(_parameters(tree))))


def _is_parameter(tokens: list[Token], at: int) -> bool:
    """Whether `:n` begins here: DuckDB has a colon only between two values, or in `x[:n]`."""
    token, name = tokens[at], tokens[at + 1]
    if token.token_type is not TokenType.COLON or name.start != token.end + 1 or not is_name(name):
        return False
    before = [each.token_type for each in tokens[max(at - 2, 0) : at]]
    if before[-1:] == [TokenType.L_BRACKET]:
        before.pop()
    return not before or before[-1] not in _ENDS_OF_VALUES


def _dollar(colon: Token) -> Token:
    place = colon.line, colon.col, colon.start, colon.end
    return Token(TokenType.PARAMETER, "$", *place, colon.comments)


def _with_dollars(sql: str, colons: list[Token]) -> str:
    """The text with `$n` for each `:n`, as DuckDB writes it."""
    characters = list(sql)
    for colon in colons:
        characters[colon.start] = "$"
    return "".join(characters)


def _tables(tree: exp.Query, text: str) -> tuple[str, ...]:
    """The tables that the query reads, without its own CTEs and subqueries, in order."""
    names: dict[str, None] = {}
    for scope in traverse_scope(tree):
        for source in scope.sources.values():
            if isinstance(source, Scope) or not isinstance(source.this, exp.Identifier):
                continue  # a CTE, a subquery, or a table function
            if source.db:
                raise PipelineError(
                    f"the sql reads {source.sql('duckdb')}, and a query reads only views",
                    remedy=f"write {source.name} if that is one of them",
                    line=line_at(text, max(text.find(source.db), 0)),
                )
            names[source.name.lower()] = None  # DuckDB ignores the case of table names
    return tuple(names)


def _parameters(tree: exp.Query) -> Iterator[str]:
    for node in tree.find_all(exp.Placeholder, exp.Parameter):
        name = node.name
        if not name.isidentifier():
            raise PipelineError(
                f"the sql has the parameter {node.sql('duckdb')}, which has no name",
                remedy="write :n, and declare it as in n=50",
            )
        yield name
