"""The caller of a request, and what it may do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream.web.asgi import Scope
from millstream.web.auth.rights import EVERYTHING, Action, Kind, Rights
from millstream.web.problem import Problem

_CALLER = "millstream.caller"
_VERBS = {"write": "write to", "read": "read", "query": "query", "admin": "administer"}


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """An authenticated caller, or an address where no login is needed."""

    kind: str  # key, jwt, certificate, operator, address
    name: str
    rights: Rights
    rate: float | None = None  # events a second; None: as the settings say
    claims: Mapping[str, Any] = field(default_factory=dict)  # for row policies: `caller.tenant`
    expires: float = math.inf  # when the login expires, as time.time()
    credential: bytes = b""  # the hash of its key or token; empty: it has none
    signer: bytes = b""  # of a token: the fingerprint of the issuer's key that signed it

    @property
    def label(self) -> str:
        """Kind and name, which together identify a caller."""
        return f"{self.kind} {self.name}"

    def check(self, action: Action, kind: Kind | None = None, name: str = "") -> None:
        """Problem 403 if the caller may not do this."""
        if self.rights.allows(action, kind, name):
            return
        target = f"{kind} {name!r}" if kind else "this server"
        raise Problem(
            403,
            f"{self.kind} {self.name!r} may not {_VERBS[action]} {target}; give it that right",
            missing={action: name if kind else True},
        )


ANYBODY = Caller("address", "unknown", EVERYTHING)
"""The caller where no login is needed and the address does not matter."""


def set_caller(scope: Scope, caller: Caller) -> None:
    """Make the caller known to the application behind the middleware."""
    scope[_CALLER] = caller


def caller_of(scope: Scope) -> Caller:
    """The caller of this request; ANYBODY if no login was needed."""
    caller: Caller = scope.get(_CALLER, ANYBODY)
    return caller


def caller_name(scope: Scope) -> str:
    """Kind and name of the authenticated caller; empty if no login was needed."""
    caller = caller_of(scope)
    return "" if caller.kind == "address" else caller.label


def check_writes(scope: Scope, stream: str) -> None:
    """Problem 403 if this request's caller may not write to the stream."""
    caller_of(scope).check("write", "stream", stream)
