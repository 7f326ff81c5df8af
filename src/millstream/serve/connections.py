"""The connections of this server's clients, over all transports."""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from millstream.runtime.measure import Rate
from millstream.values.clock import now_ms, to_iso
from millstream.web.auth.caller import Caller
from millstream.web.auth.usage import CallerUsage, Usage
from millstream.web.problem import RETRY, Problem

SERVICE_RESTART = 1012
CLOSED_BY_ADMIN = 4500


class SubscriptionReport(msgspec.Struct, omit_defaults=True):
    """A subscription, as `/v1/connections` shows it."""

    kind: str  # view, stream, ledger, query
    name: str
    where: str | None = None
    behind: int = 0  # changes that the client has not been sent yet
    skipped: int = 0  # changes that were left out, because the client asked for that


class Traffic:
    """Counts what one client was sent, also in the usage of its caller."""

    __slots__ = ("_usage", "bytes", "messages", "since")

    def __init__(self, usage: CallerUsage | None = None) -> None:
        self._usage = usage or CallerUsage()
        self.since = now_ms()
        self.messages = Rate()
        self.bytes = 0

    def add(self, messages: Sequence[bytes]) -> None:
        self.messages.add(len(messages))
        size = sum(map(len, messages))
        self.bytes += size
        self._usage.events += len(messages)
        self._usage.bytes += size


class ClientConnection(Protocol):
    """One client's connection. Belongs to the event loop; nothing here blocks."""

    @property
    def caller(self) -> Caller: ...
    @property
    def address(self) -> str: ...
    @property
    def transport(self) -> str:
        """`websocket` or `sse`."""
        ...

    @property
    def traffic(self) -> Traffic: ...

    def subscriptions(self) -> list[SubscriptionReport]: ...

    def close(self, code: int, reason: str) -> None:
        """Tell the client why, and close. Does nothing if the connection is closing already."""
        ...

    def send_positions(self) -> None:
        """Send the position to a client whose filter has hidden all recent changes."""
        ...


class ConnectionReport(msgspec.Struct):
    """A connection, as `/v1/connections` shows it."""

    id: str
    caller: str
    address: str
    transport: str
    since: str
    rate: float  # messages a second
    bytes: int
    behind: int
    subscriptions: list[SubscriptionReport]


class Connections:
    """All open connections of this server. They add and remove themselves."""

    def __init__(self, max_per_caller: int = 1024) -> None:
        self.usage = Usage()
        self._max_per_caller = max_per_caller
        self._server = uuid.uuid4().hex[:6]  # ids of two servers must differ
        self._numbers = itertools.count(1)
        self._open: dict[ClientConnection, str] = {}
        self._by_caller: Counter[tuple[str, str]] = Counter()

    def __iter__(self) -> Iterator[ClientConnection]:
        """The connections that are open now; they may be closed meanwhile."""
        return iter(tuple(self._open))

    def __len__(self) -> int:
        return len(self._open)

    def check_caller(self, caller: Caller) -> None:
        """Problem 429 if this caller has as many connections as it may have."""
        # Callers without a login are limited by address, in `web.connections`.
        if caller.kind != "address" and self._by_caller[_identity(caller)] >= self._max_per_caller:
            raise Problem(
                429,
                f"{caller.kind} {caller.name!r} has {self._max_per_caller} connections already",
                remedy="close one, or raise serve.max_connections_per_caller",
                headers=[RETRY],
            )

    def add(self, connection: ClientConnection) -> None:
        self._open[connection] = f"{self._server}-{next(self._numbers)}"
        self._by_caller[_identity(connection.caller)] += 1

    def discard(self, connection: ClientConnection) -> None:
        if self._open.pop(connection, None) is None:
            return
        identity = _identity(connection.caller)
        self._by_caller[identity] -= 1
        if not self._by_caller[identity]:
            del self._by_caller[identity]

    def count(self, name: str) -> int:
        """How many connections the callers with that name have (see `usage.name_of`)."""
        return sum(
            number for identity, number in self._by_caller.items() if _counted(identity) == name
        )

    def find(self, identifier: str) -> ClientConnection | None:
        """The connection of that id, as in its report."""
        return next((each for each, held in self._open.items() if held == identifier), None)

    def close_callers(self, belongs: Callable[[Caller], bool], code: int, reason: str) -> int:
        """Close the connections of all callers for which `belongs` is true; how many these are."""
        found = [each for each in self._open if belongs(each.caller)]
        for connection in found:
            connection.close(code, reason)
        return len(found)

    def report(self, connection: ClientConnection) -> ConnectionReport | None:
        """What `/v1/connections` shows; None if it is closed."""
        identifier = self._open.get(connection)
        if identifier is None:
            return None
        traffic, subscriptions = connection.traffic, connection.subscriptions()
        caller = connection.caller
        return ConnectionReport(
            id=identifier,
            caller="" if caller.kind == "address" else f"{caller.kind} {caller.name}",
            address=connection.address,
            transport=connection.transport,
            since=to_iso(traffic.since),
            rate=round(traffic.messages.per_second(), 2),
            bytes=traffic.bytes,
            behind=sum(each.behind for each in subscriptions),
            subscriptions=subscriptions,
        )


def _counted(identity: tuple[str, str]) -> str:
    return "address" if identity[0] == "address" else " ".join(identity)


def _identity(caller: Caller) -> tuple[str, str]:
    return caller.kind, caller.name
