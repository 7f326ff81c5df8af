"""Parses a view's SQL, without running it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError
from sqlglot.optimizer.scope import Scope, traverse_scope
from sqlglot.tokens import Token, TokenType

from millstream.errors import PipelineError
from millstream.pipeline.windows import marker
from millstream.syntax.names import closest
from millstream.syntax.tokens import line_at, split_tokens

_KEYWORDS = [
    "SELECT",
    "FROM",
    "WHERE",
    "GROUP",
    "BY",
    "HAVING",
    "JOIN",
    "LEFT",
    "INNER",
    "ON",
    "AS",
    "AND",
    "OR",
    "UNION",
    "ALL",
    "DISTINCT",
    "LATERAL",
    "VIEW",
    "CASE",
    "WHEN",
    "THEN",
    "ELSE",
    "END",
]
_BEGINNINGS = ("SELECT", "WITH", "FROM", "(")
_FORM = "write one SELECT"
COUNT_WINDOW = "count_window"


@dataclass(frozen=True, slots=True)
class SelectQuery:
    """What is known about a SELECT from its text."""

    inputs: tuple[str, ...]
    columns: tuple[str, ...] | None  # None: unknown (SELECT *)
    aggregates: bool
    grouping: tuple[str, ...]  # if it aggregates: the result columns without an aggregate


def parse_select(text: str) -> SelectQuery:
    """The inputs and columns of a SELECT; PipelineError (without a file) if it is not one."""
    tree = _parse(text)
    counts = _check_count_windows(tree, text)
    inputs = _inputs(tree, text)
    if not inputs:
        raise PipelineError("the sql reads no stream and no view", remedy="write FROM and its name")
    # The row of a window by count never changes, so it replaces no other row.
    aggregates = _aggregates(tree) and not counts
    names = [_name(each) for each in tree.selects]
    grouping = [
        name
        for each, name in zip(tree.selects, names, strict=True)
        if aggregates and name and not each.find(exp.AggFunc)
    ]
    return SelectQuery(
        inputs,
        None if "*" in names else tuple(name for name in names if name),
        aggregates,
        tuple(grouping),
    )


def to_spark_sql(text: str) -> str:
    """The SELECT for Spark: with markers for `count_window(…)`, which Spark lacks."""
    pieces, copied = [], 0
    for call in _count_windows(text):
        pieces += [text[copied : call.start], call.marker]
        copied = call.end
    return "".join([*pieces, text[copied:]])


class _Call(NamedTuple):
    start: int
    end: int
    marker: str


def _count_windows(text: str) -> Iterator[_Call]:
    tokens = split_tokens(text, "the sql")
    for at, token in enumerate(tokens[:-1]):
        opens = tokens[at + 1].token_type is TokenType.L_PAREN
        if token.text.lower() != COUNT_WINDOW or not opens:
            continue
        words = list(
            itertools.takewhile(lambda t: t.token_type is not TokenType.R_PAREN, tokens[at + 2 :])
        )
        numbers = words[::2]
        line = line_at(text, token.start)
        commas = all(word.token_type is TokenType.COMMA for word in words[1::2])
        whole = all(n.token_type is TokenType.NUMBER and n.text.isdigit() for n in numbers)
        if not (len(words) in (1, 3) and commas and whole):
            raise PipelineError(
                f"the sql has a {COUNT_WINDOW} that is not given a number of events",
                remedy=f"write {COUNT_WINDOW}(100), or {COUNT_WINDOW}(100, 10) for one each 10",
                line=line,
            )
        try:
            made = marker(*(int(n.text) for n in numbers))
        except PipelineError as error:
            raise PipelineError(error.message, remedy=error.remedy, line=line) from None
        yield _Call(token.start, tokens[at + 2 + len(words)].end + 1, made)


def _check_count_windows(tree: exp.Query, text: str) -> bool:
    """Whether there are windows by count; PipelineError if one of them is wrong."""
    calls = list(_count_windows(text))
    for select in tree.find_all(exp.Select):
        for each in select.selects:
            if isinstance(each, exp.Anonymous) and each.name.lower() == COUNT_WINDOW:
                raise PipelineError(
                    f"the sql selects a {COUNT_WINDOW} that has no name",
                    remedy="write … AS window behind it",
                    line=line_at(text, calls[0].start),
                )
    return bool(calls)


def _parse(text: str) -> exp.Query:
    tokens = [_plain_window(*three) for three in _threes(split_tokens(text, "the sql"))]
    return parse_one_select(Spark(), tokens, text, "Spark SQL")


def parse_one_select(dialect: Dialect, tokens: list[Token], text: str, language: str) -> exp.Query:
    """The syntax tree of one SELECT; PipelineError (without a file) if the text is something else.

    `language` is what users call the dialect.
    """
    _check_one_select(tokens, text)
    try:
        tree = dialect.parser().parse(tokens, text)[0]
    except ParseError as error:
        raise _syntax_error(error, tokens, text, language) from None
    except RecursionError:
        raise PipelineError("the sql is nested too deep", remedy="write it flatter") from None
    if not isinstance(tree, exp.Query):
        raise PipelineError("the sql is not a SELECT", remedy=_FORM)
    return tree


def _check_one_select(tokens: list[Token], text: str) -> None:
    """Check before sqlglot parses: it silently takes unknown statements for commands."""
    if not tokens:
        raise PipelineError("the sql is empty", remedy="write a SELECT")
    first = text[tokens[0].start : tokens[0].end + 1]
    if first.upper() not in _BEGINNINGS:
        close = closest(first, _BEGINNINGS) if tokens[0].token_type is TokenType.VAR else None
        raise PipelineError(
            f"the sql is not a SELECT but {first.upper()}",
            remedy=f"did you mean {close}?" if close else _FORM,
            line=line_at(text, tokens[0].start),
        )
    for token, after in itertools.pairwise(tokens):
        if token.token_type is TokenType.SEMICOLON:
            raise PipelineError(
                "the sql has more than one statement",
                remedy=_FORM,
                line=line_at(text, after.start),
            )


def _threes(tokens: list[Token]) -> list[tuple[Token, Token | None, Token | None]]:
    ahead: list[Token | None] = [*tokens[1:], None, None]
    return list(zip(tokens, ahead, ahead[1:], strict=False))


def _plain_window(token: Token, after: Token | None, then: Token | None) -> Token:
    """`window` is a keyword only in `WINDOW name AS`; else it is Spark's function or its column.

    After GROUP BY, sqlglot takes it for the keyword.
    """
    if token.token_type is not TokenType.WINDOW:
        return token
    if after and then and after.token_type is TokenType.VAR and then.text.upper() == "AS":
        return token
    return Token(
        TokenType.VAR, token.text, token.line, token.col, token.start, token.end, token.comments
    )


def _inputs(tree: exp.Query, text: str) -> tuple[str, ...]:
    """The tables that the query reads, without its own CTEs and subqueries, in order."""
    names: dict[str, None] = {}
    for scope in traverse_scope(tree):
        for source in scope.sources.values():
            if isinstance(source, Scope) or not isinstance(source.this, exp.Identifier):
                continue  # a CTE, a subquery, or a table function
            if source.db:
                written = source.sql("spark")
                raise PipelineError(
                    f"the sql reads {written}, and a view reads only the app's streams and views",
                    remedy=f"write {source.name} if that is one of them",
                    line=line_at(text, max(text.find(source.db), 0)),
                )
            names[source.name.lower()] = None  # Spark ignores the case of table names
    return tuple(names)


def _aggregates(tree: exp.Query) -> bool:
    """Whether any part of the query aggregates rows."""
    return any(
        select.args.get("group")
        or select.args.get("distinct")
        or any(_is_aggregate(each, select) for each in select.selects)
        for select in tree.find_all(exp.Select)
    )


def _is_aggregate(projection: exp.Expr, select: exp.Select) -> bool:
    return any(
        each.find_ancestor(exp.Select) is select and not isinstance(each.parent, exp.Window)
        for each in projection.find_all(exp.AggFunc)
    )


def _name(projection: exp.Expr) -> str:
    """The result column's name in Spark; empty if Spark generates one."""
    if projection.is_star:
        return "*"
    if isinstance(projection, (exp.Alias, exp.Column, exp.Dot)):
        return projection.output_name or projection.name
    if isinstance(projection, exp.Anonymous) and projection.name.lower() in _NAMED_AFTER:
        return projection.name.lower()
    return ""


_NAMED_AFTER = ("window", "session_window")


def _syntax_error(
    error: ParseError, tokens: list[Token], text: str, language: str
) -> PipelineError:
    detail = error.errors[0]
    # sqlglot reports the column of the word's end.
    lines = text.split("\n")
    at = sum(len(line) + 1 for line in lines[: detail["line"] - 1]) + detail["col"] - 1
    before = [token for token in tokens if token.start <= at]
    near = before[-1] if before else None
    # sqlglot takes a mistyped keyword for a name, and fails at the words after it.
    suspects = [*reversed(before[-2:]), *before[:1]]
    for token in suspects:
        if token.token_type is not TokenType.VAR or len(token.text) < 3:
            continue  # too short to distinguish a mistyped word from a name
        close = closest(token.text, _KEYWORDS)
        if close and close != token.text.upper() and abs(len(close) - len(token.text)) <= 1:
            return PipelineError(
                f"the sql cannot be read at {token.text!r}",
                remedy=f"did you mean {close}?",
                line=line_at(text, token.start),
            )
    wanted = detail["description"].removeprefix("Expecting ")
    written = text[near.start : near.end + 1] if near else ""
    return PipelineError(
        f"the sql cannot be read at {written!r}" if near else "the sql cannot be read",
        remedy=f"{wanted!r} is missing there" if len(wanted) == 1 else f"write it in {language}",
        line=line_at(text, near.start) if near else 1,
    )
