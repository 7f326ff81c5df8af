from __future__ import annotations

import pytest

from millstream.serve.connections import Connections, SubscriptionReport, Traffic
from millstream.web.auth.caller import ANYBODY, Caller
from millstream.web.auth.rights import EVERYTHING
from millstream.web.problem import Problem


class Client:
    """A connection that only remembers how it was closed."""

    transport = "websocket"
    address = "192.0.2.1"

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.traffic = Traffic()
        self.closed: int | None = None

    def subscriptions(self) -> list[SubscriptionReport]:
        return [SubscriptionReport("view", "v", behind=3), SubscriptionReport("view", "w")]

    def close(self, code: int, reason: str) -> None:
        self.closed = code

    def send_positions(self) -> None:
        pass


def named(name: str) -> Caller:
    return Caller("key", name, EVERYTHING)


def test_a_caller_has_a_limited_number_of_connections_and_others_their_own() -> None:
    connections = Connections(max_per_caller=2)
    held = [Client(named("a")) for _ in range(2)]
    for each in held:
        connections.check_caller(each.caller)
        connections.add(each)
    with pytest.raises(Problem, match="max_connections_per_caller") as refused:
        connections.check_caller(named("a"))
    assert refused.value.status == 429
    connections.check_caller(named("b"))
    connections.discard(held[0])
    connections.discard(held[0])  # a connection may end in two ways at once
    connections.check_caller(named("a"))


def test_callers_without_a_login_are_not_counted_as_one() -> None:
    connections = Connections(max_per_caller=1)
    for _ in range(3):
        connections.check_caller(ANYBODY)
        connections.add(Client(ANYBODY))
    assert len(connections) == 3


def test_all_connections_of_a_revoked_caller_are_closed() -> None:
    connections = Connections()
    clients = [Client(named(name)) for name in "aba"]
    for each in clients:
        connections.add(each)
    assert connections.close_callers(lambda caller: caller.name == "a", 4503, "revoked") == 2
    assert [each.closed for each in clients] == [4503, None, 4503]


def test_a_report_adds_up_the_subscriptions() -> None:
    connections, client = Connections(), Client(named("a"))
    assert connections.report(client) is None
    connections.add(client)
    client.traffic.add([b"12", b"345"])
    report = connections.report(client)
    assert report is not None
    assert (report.caller, report.bytes, report.behind) == ("key a", 5, 3)
    assert connections.find(report.id) is client
