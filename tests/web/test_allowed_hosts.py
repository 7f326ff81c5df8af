"""Allowed values of the Host header, and checks of a request's head."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.web.echo_server import echo_server, request

from millstream.collect.settings import CollectSettings
from millstream.serve.settings import ServeSettings
from millstream.web.allowed_hosts import AllowedHosts

OURS = [
    *(b"localhost", b"localhost:8400", b"LocalHost.", b"127.0.0.1:1", b"127.0.0.9", b"[::1]:8400"),
    *(b"0.0.0.0:8400", b"10.0.0.5", b"10.0.0.5:80"),
]
NOT_OURS = [
    *(b"evil.example", b"evil.example:8400", b"localhost.evil.example", b"notlocalhost", b""),
    *(b"10.0.0.6", b"127.0.0.1.nip.example", b"a@localhost", b"localhost:x", b"local host"),
    *(b"[::1", b"::1:80:1", b"[evil.example]", b"localhost/", b"views.example", b"\xff"),
]


def test_local_names_and_the_local_address_are_allowed() -> None:
    hosts = AllowedHosts("0.0.0.0")
    assert [host for host in OURS if not hosts.accepts(host, "10.0.0.5")] == []
    assert [host for host in NOT_OURS if hosts.accepts(host, "10.0.0.5")] == []
    assert hosts.accepts(b"[fd00::5]:80", "fd00::5")
    assert hosts.accepts(b"10.0.0.5", "::ffff:10.0.0.5")


def test_the_settings_allow_other_names() -> None:
    hosts = AllowedHosts(
        "collect.internal", ["Views.Example", "*.shop.example", "10.0.0.6", "fd00::6"]
    )
    for host in (b"collect.internal:1", b"views.example", b"a.shop.example", b"10.0.0.6"):
        assert hosts.accepts(host, "127.0.0.1"), host
    assert hosts.accepts(b"[fd00::6]:443", "127.0.0.1")
    for host in (b"shop.example", b"a.shop.example.evil.example", b"viewsxexample"):
        assert not hosts.accepts(host, "127.0.0.1"), host
    assert AllowedHosts(allowed=["*"]).accepts(b"evil.example", "127.0.0.1")


@pytest.mark.parametrize("settings", [CollectSettings, ServeSettings])
@pytest.mark.parametrize("name", ["https://views.example", "views.example:80", "a b", ""])
def test_an_invalid_host_name_is_refused(
    settings: type[CollectSettings] | type[ServeSettings], name: str
) -> None:
    with pytest.raises(ValueError, match="is not a host name"):
        settings(allowed_hosts=[name])


async def test_a_page_of_another_name_gets_nothing_from_the_collector(tmp_path: Path) -> None:
    async with echo_server(tmp_path, allowed_hosts=["collect.example"]) as server:
        evil = {
            "host": f"evil.example:{server.port}",
            "origin": f"http://evil.example:{server.port}",
        }
        for headers in (evil, {**evil, "upgrade": "websocket", "connection": "upgrade"}):
            answer = await server.ask(body=b"", headers=headers)
            assert (answer.status, answer.headers["connection"]) == (421, "close")
            assert "collect.allowed_hosts" in answer.problem()["detail"]
        absolute = await server.ask("http://evil.example/health/live")
        assert absolute.status == 421
        assert server.server.limits.refused["host"] == 3
        assert server.echo.bodies == []
        for host in ("collect.example", f"localhost:{server.port}", f"127.0.0.1:{server.port}"):
            assert (await server.ask(headers={"host": host})).status == 200
        assert (await server.ask("http://localhost/health/live")).status == 200


CHUNKS = b"2\r\n{}\r\n0\r\n\r\n"
HEAD = b"POST / HTTP/1.1\r\nhost: localhost\r\n"
REFUSED = {
    b"GET / HTTP/1.1\r\n\r\n": 400,
    b"GET / HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n": 400,
    b"GET / HTTP/1.1\r\nhost: localhost\r\nHost: evil.example\r\n\r\n": 400,
    b"GET / HTTP/1.1\r\nhost:\r\n\r\n": 421,
    b"GET /\r\n\r\n": 400,
    HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n" + CHUNKS: 501,
    HEAD + b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKS: 501,
    HEAD + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKS: 400,
    HEAD + b"transfer-encoding: chunked, gzip\r\n\r\n" + CHUNKS: 400,
    HEAD.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n" + CHUNKS: 400,
}


async def test_what_leaves_open_who_is_asked_or_where_a_body_ends_is_refused(
    tmp_path: Path,
) -> None:
    async with echo_server(tmp_path) as server:
        for data, status in REFUSED.items():
            answer = await server.exchange(data + request("/smuggled"))
            assert answer.startswith(b"HTTP/1.1 %d " % status), (data, answer)
            assert answer.count(b"HTTP/1.1 ") == 1, data
        assert server.echo.bodies == []
        for data in (b"GET / HTTP/1.0\r\n\r\n", HEAD + b"transfer-encoding: Chunked\r\n"):
            more = b"connection: close\r\n\r\n" + CHUNKS if data.startswith(HEAD) else b""
            assert b"200 OK" in await server.exchange(data + more)
        assert server.echo.bodies == [b"", b"{}"]
