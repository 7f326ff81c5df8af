"""Source locations in the user's files, down to a line inside a text argument."""

from __future__ import annotations

import ast
import linecache
import os
import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Protocol

from millstream.errors import PipelineError

_OURS = f"{Path(__file__).parents[1]}{os.sep}"


def is_ours(file: str) -> bool:
    """Whether a source file belongs to Millstream."""
    return file.startswith(_OURS)


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A line in one of the user's files."""

    file: str
    line: int


class Statement(Protocol):
    """A user's declaration: a call in Python, or a statement in SQL."""

    @property
    def location(self) -> SourceLocation: ...

    def line_of(self, option: str, line: int = 1) -> int:
        """The line in the file where line number `line` of an option's value is."""
        ...


def mistake(
    statement: Statement, message: str, *, remedy: str = "", option: str = "", line: int = 1
) -> PipelineError:
    """The error to raise about a statement, or about line number `line` of one of its options."""
    at = statement.line_of(option, line) if option else statement.location.line
    return PipelineError(message, remedy=remedy, file=statement.location.file, line=at)


@dataclass(frozen=True, slots=True)
class Call:
    """A call in a user's Python file; the source is read only to locate an error."""

    location: SourceLocation
    _span: tuple[int | None, ...]

    @classmethod
    def of_user(cls) -> Call:
        """The innermost call from a file that is not Millstream's."""
        frame: FrameType | None = sys._getframe(1)
        while frame.f_back and is_ours(frame.f_code.co_filename):  # type: ignore[union-attr]
            frame = frame.f_back  # type: ignore[union-attr]
        assert frame is not None
        span = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
        return cls(SourceLocation(frame.f_code.co_filename, frame.f_lineno), span)

    def line_of(self, option: str, line: int = 1) -> int:
        node = self._argument(option)
        return self.location.line if node is None else _line_inside(node, line)

    def _argument(self, option: str) -> ast.expr | None:
        tree = _parse(self.location.file)
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.Call) and _span(node) == self._span:
                for keyword in node.keywords:
                    if keyword.arg == option:
                        return _resolve(keyword.value, tree)
        return None


def _parse(file: str) -> ast.Module | None:
    linecache.checkcache(file)
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # not the code that runs
        return None


def _span(node: ast.expr) -> tuple[int | None, ...]:
    return (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)


def _resolve(node: ast.expr, tree: ast.Module | None) -> ast.expr:
    """The value of a name that the file assigns exactly once; else the expression itself."""
    if not isinstance(node, ast.Name) or tree is None:
        return node
    values = [
        each.value
        for each in ast.walk(tree)
        if isinstance(each, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == node.id for target in each.targets)
    ]
    return values[0] if len(values) == 1 else node


def _line_inside(node: ast.expr, line: int) -> int:
    texts = [
        each
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]
    if len(texts) == 1:
        text = texts[0]
        # Lines of the value are lines of the file only if no newline is written as \n.
        if str(text.value).count("\n") == (text.end_lineno or text.lineno) - text.lineno:
            return text.lineno + line - 1
        return text.lineno
    return node.lineno
