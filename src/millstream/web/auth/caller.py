"""Who calls, and what the caller may do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from millstream.web.asgi import Scope
from millstream.web.problem import Problem

_CALLER = "millstream.caller"


@dataclass(frozen=True, slots=True)
class Caller:
    """A login that was verified, or an address where nobody has to log in."""

    kind: str  # key, jwt, certificate, address
    name: str
    streams: frozenset[str]  # that it may write to, of those that there are
    rate: float | None = None  # events a second; None: as the settings say

    def check_writes(self, stream: str) -> None:
        """Problem 403 if it may not write to the stream."""
        if stream not in self.streams:
            raise Problem(
                403,
                f"{self.kind} {self.name!r} may not write to stream {stream!r}; give it that right",
                missing={"write": stream},
            )


def matching(patterns: Iterable[str], names: Iterable[str]) -> frozenset[str]:
    """The names that one of the patterns covers; `*` stands for any characters, nothing else."""
    either = "|".join(".*".join(map(re.escape, pattern.split("*"))) for pattern in patterns)
    return frozenset(filter(re.compile(either, re.DOTALL).fullmatch, names))


def set_caller(scope: Scope, caller: Caller) -> None:
    """Let the rest of the request's way know who calls."""
    scope[_CALLER] = caller


def caller_name(scope: Scope) -> str:
    """Who was authenticated; empty if nobody had to be."""
    caller: Caller | None = scope.get(_CALLER)
    return "" if caller is None or caller.kind == "address" else f"{caller.kind} {caller.name}"


def check_writes(scope: Scope, stream: str) -> None:
    """Problem 403 if this request's caller may not write to the stream."""
    caller: Caller | None = scope.get(_CALLER)
    if caller is not None:
        caller.check_writes(stream)
