"""TLS and mutual TLS, with real certificates, stalling handshakes, and changing files."""

from __future__ import annotations

import asyncio
import socket
import ssl
import warnings
from pathlib import Path
from typing import Any

import pytest
from tests.wait_until import until
from tests.web.certificate_authority import Authority
from tests.web.echo_server import (
    Answer,
    EchoServer,
    echo_server,
    read_answer,
    request,
)

from millstream.collect.settings import CollectSettings
from millstream.errors import SettingsError
from millstream.web.auth.api_keys import ApiKeyFile
from millstream.web.tls import Certificate


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ca")


@pytest.fixture
def tls(authority: Authority) -> dict[str, Any]:
    certificate, key = authority.issue("server")
    return {"tls_certificate": certificate, "tls_key": key}


async def ask(
    server: EchoServer, context: ssl.SSLContext, path: str = "/v1/streams/clicks", **headers: str
) -> Answer:
    async with asyncio.timeout(30), server.connect(ssl=context) as (reader, writer):
        writer.write(request(path, headers=headers))
        return await read_answer(reader)


async def serial(server: EchoServer, context: ssl.SSLContext) -> object:
    """The serial number of the server's certificate."""
    async with server.connect(ssl=context) as (_, writer):
        return writer.get_extra_info("peercert")["serialNumber"]


async def test_a_sender_that_trusts_the_authority_is_served(
    authority: Authority, tls: dict[str, Any], tmp_path: Path
) -> None:
    async with echo_server(tmp_path, **tls) as server:
        assert server.url == f"https://127.0.0.1:{server.port}"
        async with server.connect(ssl=authority.trusting()) as (reader, writer):
            for _ in range(2):
                writer.write(request(body=b"x" * 100_000))
                assert (await read_answer(reader)).status == 200
            assert writer.get_extra_info("cipher")[1] in ("TLSv1.3", "TLSv1.2")
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(server, ssl.create_default_context())
        await until(lambda: server.server.limits.count == 0)


OLD = [
    (ssl.TLSVersion.TLSv1, "DEFAULT@SECLEVEL=0"),
    (ssl.TLSVersion.TLSv1_1, "DEFAULT@SECLEVEL=0"),
    (ssl.TLSVersion.TLSv1_2, "AES128-SHA"),  # no forward secrecy
    (ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES128-SHA"),  # no authenticated encryption
]


async def test_broken_versions_and_ciphers_are_refused(
    authority: Authority, tls: dict[str, Any], tmp_path: Path
) -> None:
    async with echo_server(tmp_path, **tls) as server:
        for version, ciphers in OLD:
            context = authority.trusting()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                context.minimum_version = context.maximum_version = version
            context.set_ciphers(ciphers)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await ask(server, context)
        assert (await ask(server, authority.trusting())).status == 200


async def test_plain_http_and_garbage_on_the_tls_port_are_closed_at_once(
    tls: dict[str, Any], tmp_path: Path
) -> None:
    async with echo_server(tmp_path, **tls) as server:
        for data in (request(), b"\0" * 100, b"\x16\x03\x01\x00\x05hello", b"\x80" * 70_000):
            assert b"HTTP" not in await server.exchange(data, seconds=5)
        await until(lambda: server.server.limits.count == 0)
        assert server.server.limits.refused["tls"] == 4
        assert server.echo.bodies == []


async def test_a_stalled_handshake_is_closed_and_counts_as_a_connection(
    authority: Authority, tls: dict[str, Any], tmp_path: Path
) -> None:
    quick = {**tls, "header_timeout": 2.0, "max_connections_per_address": 3}
    async with echo_server(tmp_path, **quick) as server:
        hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the beginning of one
        async with server.connect() as (silent, _), server.connect() as (begun, writer):
            writer.write(hello)
            await until(lambda: server.server.limits.count == 2)
            assert (await ask(server, authority.trusting())).status == 200
            async with server.connect() as (third, _), server.connect() as (fourth, _):
                assert await fourth.read() == b""  # at once: three are inside
                async with asyncio.timeout(10):
                    for reader in (silent, begun, third):
                        assert await reader.read() == b""
        await until(lambda: server.server.limits.count == 0)


async def test_the_server_stops_during_a_handshake(tls: dict[str, Any], tmp_path: Path) -> None:
    with socket.socket() as silent:
        async with asyncio.timeout(10), echo_server(tmp_path, **tls) as server:
            silent.setblocking(False)
            await asyncio.get_running_loop().sock_connect(silent, ("127.0.0.1", server.port))
            await until(lambda: server.server.limits.count == 1)
        assert server.server.limits.count == 0


async def test_a_changed_certificate_is_used_without_a_restart(
    authority: Authority, tls: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trusting, key_file = authority.trusting(), Path(tls["tls_key"])
    async with (
        echo_server(tmp_path, **tls) as server,
        server.connect(ssl=trusting) as (reader, writer),
    ):
        first = await serial(server, trusting)
        await asyncio.to_thread(key_file.write_bytes, b"half written")
        await until(lambda: "kept the old certificate" in caplog.text)
        assert await serial(server, trusting) == first
        authority.issue("server")

        async def is_another() -> bool:
            return await serial(server, trusting) != first

        await until(is_another)
        writer.write(request())  # on the connection of before
        assert (await read_answer(reader)).status == 200


@pytest.mark.parametrize("auth", [[], ["certificate"], ["key"]], ids=str)
async def test_a_client_without_a_certificate_of_the_authority_is_refused(
    authority: Authority, tls: dict[str, Any], tmp_path: Path, auth: list[str]
) -> None:
    key = ApiKeyFile(tmp_path / "keys.json").create("shop", ["*"])
    shown = {"x-api-key": key} if auth == ["key"] else {}
    mallory = Authority(tmp_path, "mallory").issue("shop-1")
    expired = authority.issue("old", days=-1)
    settings = {**tls, "tls_client_ca": str(authority.file), "auth": auth}
    async with echo_server(tmp_path, **settings) as server:
        for pair in (None, mallory, expired):
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await ask(server, authority.trusting(pair), **shown)
        assert server.echo.bodies == []
        good = authority.issue("shop-1")
        assert (await ask(server, authority.trusting(good), **shown)).status == 200
        if auth == ["key"]:  # both are asked for
            assert (await ask(server, authority.trusting(good))).status == 401


async def test_a_certificate_s_names_say_what_it_may_write(
    authority: Authority, tls: dict[str, Any], tmp_path: Path
) -> None:
    settings = {
        **tls,
        "tls_client_ca": str(authority.file),
        "auth": ["certificate", "key"],
        "tls_client_streams": {"shop-*": ["clicks"], "notes.example": ["no*"]},
    }
    key = ApiKeyFile(tmp_path / "keys.json").create("shop", ["names"])
    async with echo_server(tmp_path, **settings) as server:

        async def opens(*names: str) -> list[str]:
            context = authority.trusting(authority.issue(*names))
            streams = ("clicks", "notes", "names")
            return [
                s for s in streams if (await ask(server, context, f"/v1/streams/{s}")).status == 200
            ]

        assert await opens("shop-1") == ["clicks"]
        assert await opens("shop-2", "notes.example") == ["clicks", "notes"]
        assert await opens("workshop-1") == []
        anybody = authority.trusting()
        assert (await ask(server, anybody)).status == 401
        assert (await ask(server, anybody, "/v1/streams/names", **{"x-api-key": key})).status == 200


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tls_key": "missing.key"}, "No such file"),
        ({"tls_key": "other.key"}, "mismatch"),
        ({"tls_key": "locked.key"}, "without a password"),
        ({"tls_certificate": "empty.pem"}, "in PEM"),
        ({"tls_client_ca": "empty.pem"}, "must be certificates in PEM"),
    ],
)
def test_files_that_cannot_be_used_are_named_at_start(
    authority: Authority,
    tls: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str],
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    authority.issue("other")
    authority.issue("locked", password=b"hush")
    Path("empty.pem").write_bytes(b"")
    with pytest.raises(SettingsError, match=why) as refused:
        Certificate(CollectSettings(**{**tls, **change}))
    assert next(iter(change.values())) in str(refused.value)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"tls_certificate": "a"}, "set both"),
        ({"tls_client_ca": "a"}, "needs TLS"),
        ({"auth": ["certificate"]}, "tls_client_ca is not set"),
        ({"tls_client_streams": {"a": ["b"]}}, "needs 'certificate' in auth"),
    ],
)
def test_settings_that_would_not_protect_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        CollectSettings(**given)
