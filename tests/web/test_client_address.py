"""Behind proxies, the client's address counts; nobody else can choose it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.web.echo_server import echo_server

from millstream.web.client_address import TrustedProxies

PROXIES = TrustedProxies(["10.0.0.0/8", "2001:db8::1"])
FORWARDED, X_FORWARDED = b"forwarded", b"x-forwarded-for"


@pytest.mark.parametrize(
    ("peer", "headers", "client"),
    [
        ("198.51.100.7", [(X_FORWARDED, b"203.0.113.9")], "198.51.100.7"),  # no proxy of ours
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [(X_FORWARDED, b"203.0.113.9")], "203.0.113.9"),
        ("10.0.0.1", [(X_FORWARDED, b"203.0.113.9:4711")], "203.0.113.9"),
        ("2001:db8::1", [(X_FORWARDED, b"2001:db8:2::5")], "2001:db8:2::5"),
        # What the client wrote itself stands before what the proxy saw.
        ("10.0.0.1", [(X_FORWARDED, b"1.1.1.1, 203.0.113.9")], "203.0.113.9"),
        ("10.0.0.1", [(X_FORWARDED, b"1.1.1.1"), (X_FORWARDED, b"203.0.113.9")], "203.0.113.9"),
        ("10.0.0.1", [(X_FORWARDED, b"1.1.1.1, 203.0.113.9, 10.0.0.2")], "203.0.113.9"),
        ("10.0.0.1", [(X_FORWARDED, b"nonsense, 10.0.0.2")], "10.0.0.2"),
        ("10.0.0.1", [(X_FORWARDED, b"")], "10.0.0.1"),
        ("10.0.0.1", [(FORWARDED, b"for=203.0.113.9;proto=https;by=10.0.0.1")], "203.0.113.9"),
        ("10.0.0.1", [(FORWARDED, b'proto=https; For="[2001:db8:2::5]:4711"')], "2001:db8:2::5"),
        ("10.0.0.1", [(FORWARDED, b"for=1.1.1.1, for=203.0.113.9")], "203.0.113.9"),
        ("10.0.0.1", [(FORWARDED, b"for=unknown")], "10.0.0.1"),
        ("10.0.0.1", [(FORWARDED, b"for=_hidden, for=10.0.0.3")], "10.0.0.3"),
        # A proxy that writes one of them may pass on the other as the client sent it.
        (
            "10.0.0.1",
            [(FORWARDED, b"for=1.1.1.1"), (X_FORWARDED, b"203.0.113.9")],
            "10.0.0.1",
        ),
        (
            "10.0.0.1",
            [(FORWARDED, b"for=203.0.113.9"), (X_FORWARDED, b"1.1.1.1, 203.0.113.9")],
            "203.0.113.9",
        ),
        ("unix socket", [(X_FORWARDED, b"203.0.113.9")], "unix socket"),
    ],
)
def test_the_client_is_the_last_address_that_is_no_proxy(
    peer: str, headers: list[tuple[bytes, bytes]], client: str
) -> None:
    assert PROXIES.client(peer, headers) == client


def test_without_proxies_in_the_settings_no_header_counts() -> None:
    headers = [(X_FORWARDED, b"203.0.113.9"), (FORWARDED, b"for=203.0.113.9")]
    assert TrustedProxies().client("127.0.0.1", headers) == "127.0.0.1"


def test_long_chains_are_cut() -> None:
    hops = b", ".join([b"1.1.1.1"] + [b"10.0.0.2"] * 10_000)
    assert PROXIES.client("10.0.0.1", [(X_FORWARDED, hops)]) == "10.0.0.2"


async def test_a_rate_counts_the_clients_behind_a_proxy(tmp_path: Path) -> None:
    limits = {"rate": 0.1, "rate_burst": 1, "trusted_proxies": ["127.0.0.0/8"]}
    async with echo_server(tmp_path, **limits) as server:
        for header in ("forwarded", "x-forwarded-for"):
            for number, status in ((1, 200), (2, 200), (1, 429)):
                address = f"192.0.2.{number}" if header == "forwarded" else f"198.51.100.{number}"
                said = f"for={address}" if header == "forwarded" else address
                assert (await server.ask(headers={header: said})).status == status


async def test_a_proxy_may_have_the_connections_of_many_clients(tmp_path: Path) -> None:
    limits = {"max_connections_per_address": 2, "trusted_proxies": ["127.0.0.1"]}
    async with (
        echo_server(tmp_path, **limits) as server,
        server.connect(),
        server.connect(),
        server.connect(),
    ):
        assert (await server.ask()).status == 200
