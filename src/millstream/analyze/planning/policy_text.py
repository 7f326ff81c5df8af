"""The text of a pipeline without its policies.

A view's generation contains the text of the file if the query calls Python functions. A policy says
who sees which rows, not which rows there are. So changing one must not rebuild the view.
"""

from __future__ import annotations

import ast
from itertools import accumulate
from typing import NamedTuple

from millstream.pipeline.declarations.policy import LEDGER_ROWS, POLICY_OPTIONS

_OPTIONS = frozenset((*POLICY_OPTIONS, LEDGER_ROWS))
_DECLARING = frozenset(("view", "stream"))


class _Span(NamedTuple):
    start: int
    end: int


def without_policies(source: bytes) -> bytes:
    """The Python source as if no call of `view` or `stream` had a policy; other text as it is."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return source
    lines = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
    cuts = [cut for node in ast.walk(tree) for cut in _cuts(node, lines)]
    for cut in sorted(cuts, reverse=True):
        source = source[: cut.start] + source[cut.end :]
    return source


def _cuts(node: ast.AST, lines: list[int]) -> list[_Span]:
    """The policies in a call, each with the comma that separates it from its neighbour."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return []
    if node.func.attr not in _DECLARING:
        return []
    arguments: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
    given = sorted((_span(each, lines), each) for each in arguments)
    cuts, end_of_kept = [], 0
    for at, (span, argument) in enumerate(given):
        if not isinstance(argument, ast.keyword) or argument.arg not in _OPTIONS:
            end_of_kept = span.end
        elif end_of_kept:  # the comma before it
            cuts.append(_Span(given[at - 1][0].end, span.end))
        elif at + 1 < len(given):  # the comma after it
            cuts.append(_Span(span.start, given[at + 1][0].start))
        else:
            cuts.append(span)
    return cuts


def _span(node: ast.expr | ast.keyword, lines: list[int]) -> _Span:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start = lines[node.lineno - 1] + node.col_offset
    return _Span(start, lines[node.end_lineno - 1] + node.end_col_offset)
