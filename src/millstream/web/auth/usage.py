"""What each caller has used of a server: requests, events, bytes and time of queries."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping

from millstream.web.asgi import Scope
from millstream.web.auth.caller import Caller

_USAGE = "millstream.usage"
_MAX_CALLERS = 1000
_OTHERS = "others"
_UNSAFE = re.compile(r'[^ -~]|["\\]')  # in the label of a metric


class CallerUsage:
    """Counts of one caller since the server started."""

    __slots__ = ("bytes", "events", "query_seconds", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.events = 0  # accepted by a collector; sent by a server, as messages
        self.bytes = 0  # of bodies that a collector received, or of what a server sent
        self.query_seconds = 0.0


class Usage:
    """The counts of all callers. Beyond a number of callers, new ones are counted together."""

    def __init__(self) -> None:
        self._callers: dict[str, CallerUsage] = {}

    def of(self, caller: Caller) -> CallerUsage:
        """The counts of a caller."""
        name = name_of(caller)
        found = self._callers.get(name)
        if found is None:
            if len(self._callers) >= _MAX_CALLERS:
                name = _OTHERS
            found = self._callers.setdefault(name, CallerUsage())
        return found

    @contextlib.contextmanager
    def querying(self, caller: Caller) -> Iterator[None]:
        """Count the time within the block as time of the caller's queries."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.of(caller).query_seconds += time.monotonic() - began

    def __iter__(self) -> Iterator[tuple[str, CallerUsage]]:
        return iter(self._callers.items())

    def samples(self, field: str) -> Mapping[str, float]:
        """One count of each caller, by the label of a metric."""
        return {
            f'caller="{_UNSAFE.sub("?", name)}"': getattr(each, field)
            for name, each in self._callers.items()
        }


def name_of(caller: Caller) -> str:
    """The name that a caller is counted under; callers without a login are counted together."""
    return "address" if caller.kind == "address" else caller.label


def set_usage(scope: Scope, usage: CallerUsage) -> None:
    """Make the caller's counts known to the application behind the middleware."""
    scope[_USAGE] = usage


def count(scope: Scope, *, events: int = 0, size: int = 0) -> None:
    """Count events and bytes for this request's caller, if callers are counted."""
    usage: CallerUsage | None = scope.get(_USAGE)
    if usage is not None:
        usage.events += events
        usage.bytes += size
