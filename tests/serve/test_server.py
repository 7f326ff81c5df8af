"""TLS, client certificates and the operator's key on `serve`; what is open to everybody."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets
from tests.serve.logins import Keys, bearer
from tests.serve.pipeline import SECONDS, Pipeline, Socket
from tests.web.certificate_authority import Authority
from websockets.asyncio.client import connect

from millstream.client import Client
from millstream.errors import RequestRefused, SettingsError
from millstream.runtime.home import Home
from millstream.runtime.operator_key import find_operator_key, operator_key
from millstream.serve.server import is_open
from millstream.serve.service import Server
from millstream.serve.settings import ServeSettings
from millstream.settings import Settings

CLOSED = ("/v1", "/v1/", "/v1/views", "/metrics", "/metrics/")
OPEN = ("/", "/health/live", "/index.html", "/assets/v1/x.js", "/v10", "")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


def tls(authority: Authority, **more: Any) -> dict[str, Any]:
    certificate, key = authority.issue("server")
    return {"tls_certificate": certificate, "tls_key": key, **more}


@contextlib.asynccontextmanager
async def secure_socket(server: Server, context: ssl.SSLContext) -> AsyncIterator[Socket]:
    url = server.url.replace("https", "wss") + "/v1/connect"
    async with connect(url, ssl=context, max_size=None) as connection:
        yield Socket(connection)


def test_only_health_and_the_dashboard_are_open() -> None:
    assert [path for path in (*CLOSED, *OPEN) if is_open(path)] == list(OPEN)


async def test_all_transports_work_over_tls(
    pipeline: Pipeline, authority: Authority, tmp_path: Path
) -> None:
    keys = Keys(tmp_path)
    key = keys.file.create("reader", read=["*"])
    pipeline.count("Rome", 1)
    pipeline.flush()
    async with pipeline.server(**tls(authority), **keys.settings) as server:
        assert server.url.startswith("https://")
        async with Client(server.url, key=key, ca=str(authority.file)) as client:
            assert (await client.snapshot("by_city")).rows == [{"city": "Rome", "n": 1}]
            async with client.changes("by_city") as changes:
                first = await asyncio.wait_for(anext(changes), SECONDS)
                assert [each.row["n"] for each in first.rows] == [1]  # type: ignore[union-attr]
                pipeline.count("Rome", 2)
                second = await asyncio.wait_for(anext(changes), SECONDS)
                assert second.row == {"city": "Rome", "n": 2}  # type: ignore[union-attr]
        async with Client(server.url, key="msk_wrong", ca=str(authority.file)) as client:
            with pytest.raises(RequestRefused, match="unknown, revoked or expired"):
                await client.snapshot("by_city")
            with pytest.raises(RequestRefused, match="unknown, revoked or expired"):
                await anext(client.changes("by_city"))
        with pytest.raises(ssl.SSLCertVerificationError):
            async with secure_socket(server, ssl.create_default_context()):
                pass


async def test_a_client_certificate_is_a_login(pipeline: Pipeline, authority: Authority) -> None:
    desk, other = authority.issue("desk-1"), authority.issue("other")
    settings = tls(
        authority,
        auth=["certificate"],
        tls_client_ca=str(authority.file),
        tls_client_rights={"desk-*": ["read:by_*", "admin"]},
    )
    async with pipeline.server(**settings) as server:
        for pair, statuses in ((desk, (200, 403, 200)), (other, (403, 403, 403))):
            async with httpx.AsyncClient(
                base_url=server.url, verify=authority.trusting(pair), timeout=SECONDS
            ) as http:
                paths = ("/v1/views/by_city", "/v1/views/newest", "/v1/system")
                answers = [(await http.get(path)).status_code for path in paths]
                assert tuple(answers) == statuses
        async with secure_socket(server, authority.trusting(desk)) as client:
            assert (await client.subscribe(view="by_city"))["type"] == "snapshot"
        with pytest.raises((OSError, websockets.WebSocketException)):
            async with secure_socket(server, authority.trusting()):
                pass


async def test_certificates_without_rights_in_the_settings_may_read(
    pipeline: Pipeline, authority: Authority
) -> None:
    ca = {"auth": ["certificate"], "tls_client_ca": str(authority.file)}
    trusting = authority.trusting(authority.issue("desk"))
    async with (
        pipeline.server(**tls(authority, **ca)) as server,
        httpx.AsyncClient(base_url=server.url, verify=trusting, timeout=SECONDS) as http,
    ):
        assert (await http.get("/v1/views/by_city")).status_code == 200
        assert (await http.get("/v1/system")).status_code == 403


async def test_commands_of_this_machine_log_in_by_themselves(
    pipeline: Pipeline, authority: Authority, tmp_path: Path
) -> None:
    home = Home(tmp_path / "home")
    ca = {"auth": ["certificate"], "tls_client_ca": str(authority.file)}
    serve = ServeSettings(port=0, **tls(authority, **ca))
    async with Server(pipeline.app, Settings(log=pipeline.log, serve=serve), home) as server:
        await asyncio.wait_for(server.wait_ready(), SECONDS)
        key = find_operator_key(home)
        trusting = authority.trusting()
        async with httpx.AsyncClient(base_url=server.url, verify=trusting) as http:
            for path in ("/v1/system", "/metrics", "/v1/views/by_city"):
                assert (await http.get(path, headers=bearer(key))).status_code == 200
                assert (await http.get(path, headers=bearer("mso_wrong"))).status_code == 401


def test_the_operators_key_is_of_the_home_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    assert find_operator_key(home) == ""
    key = operator_key(home)
    assert key.startswith("mso_")
    assert operator_key(home) == find_operator_key(home) == key
    file = home.path / "operator.key"
    assert (file.stat().st_mode & 0o777, home.path.stat().st_mode & 0o777) == (0o600, 0o700)
    assert sorted(each.name for each in home.path.iterdir()) == ["operator.key"]
    home.announce("serve", url="http://127.0.0.1:1")
    assert key not in json.dumps(home.running())


def test_a_public_address_needs_a_login() -> None:
    with pytest.raises(SettingsError, match=r"will not serve on 0\.0\.0\.0.*serve\.auth"):
        ServeSettings(host="0.0.0.0").check_exposure()
    for more in ({"auth": ["key"]}, {"insecure": True}):
        ServeSettings(host="0.0.0.0", **more).check_exposure()


def test_both_names_of_the_allowed_origins_count() -> None:
    settings = ServeSettings(cors_origins=["https://a.example"], origins=["https://b.example"])
    assert settings.cors_origins == ["https://a.example", "https://b.example"]
    assert ServeSettings(origins=["https://b.example"]).cors_origins == ["https://b.example"]
    with pytest.raises(ValueError, match="is no origin"):
        ServeSettings(origins=["b.example"])
