"""The caller of a request, and what it may do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from millstream.web.asgi import Scope
from millstream.web.problem import Problem

_CALLER = "millstream.caller"


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller, or an address where no login is needed."""

    kind: str  # key, jwt, certificate, address
    name: str
    streams: frozenset[str]  # existing streams that it may write to
    rate: float | None = None  # events a second; None: as the settings say

    def check_writes(self, stream: str) -> None:
        """Problem 403 if the caller may not write to the stream."""
        if stream not in self.streams:
            raise Problem(
                403,
                f"{self.kind} {self.name!r} may not write to stream {stream!r}; give it that right",
                missing={"write": stream},
            )


def matching(patterns: Iterable[str], names: Iterable[str]) -> frozenset[str]:
    """The names that match one of the patterns; only `*` is special: it means any characters."""
    either = "|".join(".*".join(map(re.escape, pattern.split("*"))) for pattern in patterns)
    return frozenset(filter(re.compile(either, re.DOTALL).fullmatch, names))


def set_caller(scope: Scope, caller: Caller) -> None:
    """Make the caller known to the application behind the middleware."""
    scope[_CALLER] = caller


def caller_name(scope: Scope) -> str:
    """Kind and name of the authenticated caller; empty if no login was needed."""
    caller: Caller | None = scope.get(_CALLER)
    return "" if caller is None or caller.kind == "address" else f"{caller.kind} {caller.name}"


def check_writes(scope: Scope, stream: str) -> None:
    """Problem 403 if this request's caller may not write to the stream."""
    caller: Caller | None = scope.get(_CALLER)
    if caller is not None:
        caller.check_writes(stream)
