"""A ticket is a sealed caller: nobody can make, read, repeat or keep one."""

from __future__ import annotations

import base64
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.web.auth import tickets as module
from millstream.web.auth.caller import Caller
from millstream.web.auth.rights import Rights
from millstream.web.auth.tickets import TicketRefused, Tickets
from millstream.web.problem import Problem

CALLER = Caller(
    "jwt",
    "anna",
    Rights(["read:orders", "admin"]),
    claims={"tenant": "acme", "email": "anna@example.org"},
    expires=2000.0,
    credential=b"hash",
    signer=b"key",
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def tickets(clock: Clock | None = None, key: bytes = b"k" * 32) -> Tickets:
    made = Tickets(clock or Clock())
    made.use_key(key)
    return made


def test_the_caller_comes_back_on_another_server() -> None:
    ticket, until = tickets().issue(CALLER)
    assert until == 1030.0
    found = tickets().redeem(ticket.encode())
    assert found.rights.words == CALLER.rights.words
    for name in ("kind", "name", "claims", "expires", "credential", "signer"):
        assert getattr(found, name) == getattr(CALLER, name)
    forever, _ = tickets().issue(Caller("key", "a", Rights([])))
    assert tickets().redeem(forever.encode()).expires == math.inf


def test_it_shows_nothing_of_the_caller() -> None:
    ticket, _ = tickets().issue(CALLER)
    content = base64.urlsafe_b64decode(ticket + "==")
    assert not any(secret in content for secret in (b"anna", b"acme", b"hash"))


def test_it_is_valid_once_and_for_thirty_seconds() -> None:
    clock = Clock()
    issuer = tickets(clock)
    used, late = (issuer.issue(CALLER)[0].encode() for _ in range(2))
    issuer.redeem(used)
    with pytest.raises(TicketRefused, match="used already"):
        issuer.redeem(used)
    clock.now += 29.9
    issuer.redeem(issuer.issue(CALLER)[0].encode())
    clock.now += 0.1
    for each in (late, used):
        with pytest.raises(TicketRefused, match="expired"):
            issuer.redeem(each)


def test_it_ends_with_the_login() -> None:
    clock = Clock()
    clock.now = 1995.0
    ticket, until = tickets(clock).issue(CALLER)
    assert until == 2000.0
    clock.now = 2000.0
    with pytest.raises(TicketRefused, match="expired"):
        tickets(clock).redeem(ticket.encode())


@given(st.binary(max_size=200))
def test_other_text_is_refused(text: bytes) -> None:
    for ticket in (text, base64.urlsafe_b64encode(text)):
        with pytest.raises(TicketRefused, match="not a ticket"):
            tickets().redeem(ticket)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_ticket_is_refused(place: int, change: int) -> None:
    content = bytearray(base64.urlsafe_b64decode(tickets().issue(CALLER)[0] + "=="))
    content[place % len(content)] ^= change
    with pytest.raises(TicketRefused, match="not a ticket"):
        tickets().redeem(base64.urlsafe_b64encode(content).rstrip(b"="))


def test_each_ticket_has_one_spelling() -> None:
    """Else a spent ticket could be written differently, and be new."""
    issuer = tickets()
    ticket = issuer.issue(CALLER)[0].encode()
    issuer.redeem(ticket)
    for other in (ticket + b"=", ticket + b"==", ticket + b"\n", b" " + ticket, ticket + b"A"):
        with pytest.raises(TicketRefused):
            issuer.redeem(other)


def test_a_ticket_of_another_system_is_refused() -> None:
    ticket, _ = tickets(key=b"o" * 32).issue(CALLER)
    with pytest.raises(TicketRefused, match="not a ticket"):
        tickets().redeem(ticket.encode())


def test_the_memory_of_spent_tickets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_USED", 3)
    clock = Clock()
    issuer = tickets(clock)
    for _ in range(3):
        issuer.redeem(issuer.issue(CALLER)[0].encode())
    with pytest.raises(Problem, match="too many tickets"):
        issuer.redeem(issuer.issue(CALLER)[0].encode())
    clock.now += 31
    issuer.redeem(issuer.issue(CALLER)[0].encode())


def test_without_a_key_there_are_no_tickets_yet() -> None:
    for work in (lambda: Tickets().issue(CALLER), lambda: Tickets().redeem(b"x" * 40)):
        with pytest.raises(Problem, match="still reading the log"):
            work()


def test_claims_that_fit_into_no_address_are_refused() -> None:
    for claim in ("x" * 12_000, 10**400):
        with pytest.raises(Problem, match="do not fit into a ticket"):
            tickets().issue(Caller("jwt", "a", Rights([]), claims={"a": claim}))
