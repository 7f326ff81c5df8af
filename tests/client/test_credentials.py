"""The Python client logs in, keeps its connections open with fresh tokens, and gives up in time."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests.serve.logins import Keys, jwt_settings
from tests.serve.pipeline import SECONDS, Pipeline
from tests.wait_until import until
from tests.web.auth.token_issuer import token

from millstream.client import Change, Changes, Client, Message, Snapshot
from millstream.client.credentials import Credentials
from millstream.errors import RequestRefused, SettingsError
from millstream.log.settings import LogSettings


@pytest.fixture
def pipeline(log_settings: LogSettings, app_name: str) -> Pipeline:
    return Pipeline(app_name, log_settings)


def fresh(seconds: int) -> str:
    return token(exp=int(time.time()) + seconds, rights="read:*")


async def next_of(changes: Changes) -> Message:
    return await asyncio.wait_for(anext(changes), SECONDS)


async def test_a_function_keeps_the_connection_open_beyond_a_tokens_life(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    tokens = iter([fresh(3), fresh(600)])

    async def current() -> str:
        return next(tokens)

    async with (
        pipeline.server(**jwt_settings(tmp_path)) as server,
        Client(server.url, key=current) as client,
        client.changes("by_city", attempts=1) as changes,
    ):
        assert isinstance(await next_of(changes), Snapshot)
        [connection] = server.context.connections
        first = connection.caller
        reading = asyncio.create_task(next_of(changes))
        await until(lambda: connection.caller is not first)
        await until(lambda: time.time() > first.expires + 0.5)
        pipeline.count("Rome", 1)
        assert isinstance(await reading, Change)
        assert list(server.context.connections) == [connection]


async def test_a_refused_token_is_replaced_once(pipeline: Pipeline, tmp_path: Path) -> None:
    tokens = iter([fresh(-10), fresh(600)])
    async with (
        pipeline.server(**jwt_settings(tmp_path)) as server,
        Client(server.url, key=lambda: next(tokens)) as client,
    ):
        assert [view["name"] for view in await client.views()] == [*pipeline.app.views]


async def test_a_token_that_cannot_be_replaced_ends_the_changes(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    async with (
        pipeline.server(**jwt_settings(tmp_path)) as server,
        Client(server.url, key=fresh(2)) as client,
        client.changes("by_city") as changes,
    ):
        await next_of(changes)
        with pytest.raises(RequestRefused, match=r"expired.*key=") as refused:
            await next_of(changes)
        assert refused.value.status == 4001


async def test_a_revoked_or_wrong_key_is_not_tried_again(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    keys = Keys(tmp_path)
    key = keys.file.create("page", read=["*"])
    async with pipeline.server(**keys.settings) as server:
        async with Client(server.url, key=key) as client, client.changes("by_city") as changes:
            await next_of(changes)
            keys.file.revoke("page")
            with pytest.raises(RequestRefused, match="revoked") as refused:
                await next_of(changes)
            assert refused.value.status == 4503
        async with Client(server.url, key=key) as client, client.changes("by_city") as changes:
            with pytest.raises(RequestRefused, match="unknown, revoked or expired") as refused:
                await next_of(changes)
            assert (refused.value.status, key in str(refused.value)) == (401, False)


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "\u00e4"])
def test_what_cannot_be_a_key_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Client("http://127.0.0.1:1", key=key)
    assert key not in str(refused.value)
    assert key not in repr(Credentials(key))


def test_only_the_servers_own_certificate_is_trusted(tmp_path: Path) -> None:
    options: dict[str, Any] = Credentials("k").options()
    assert options == {"trust_env": False, "headers": {"authorization": "Bearer k"}}
    with pytest.raises(SettingsError, match="cannot use the certificates"):
        Credentials(certificate=str(tmp_path / "missing.pem")).options()
