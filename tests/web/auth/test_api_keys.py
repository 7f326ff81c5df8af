"""API keys: what is stored, what they allow, and that a revoked key allows nothing."""

from __future__ import annotations

import json
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.wait_until import until
from tests.web.echo_server import EchoServer, echo_server, read_answer, request

from millstream.errors import MillstreamError, SettingsError
from millstream.web.auth.api_keys import ApiKey, ApiKeyFile, ApiKeys, digest


@pytest.fixture
def file(tmp_path: Path) -> ApiKeyFile:
    return ApiKeyFile(tmp_path / "keys.json")


def login(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def status(server: EchoServer, path: str, key: str) -> int:
    return (await server.ask(path, headers=login(key))).status


def test_the_file_holds_hashes_and_is_the_owner_s_alone(file: ApiKeyFile, tmp_path: Path) -> None:
    keys = [file.create(name, ["*"]) for name in ("a", "b")]
    path = tmp_path / "keys.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert all(len(key) > 40 and key.encode() not in path.read_bytes() for key in keys)
    assert [each.sha256 for each in file.read()] == [digest(k.encode()).hex() for k in keys]
    assert {each.name for each in tmp_path.iterdir()} == {"keys.json", "keys.lock"}


def test_a_name_is_given_once_and_only_a_key_that_is_there_can_be_revoked(file: ApiKeyFile) -> None:
    file.create("a", [])
    with pytest.raises(MillstreamError, match="'a' already"):
        file.create("a", [])
    with pytest.raises(MillstreamError, match="no key 'b'"):
        file.revoke("b")
    file.revoke("a")
    assert file.read() == []


def test_keys_made_at_the_same_time_are_all_kept(file: ApiKeyFile) -> None:
    threads = [threading.Thread(target=file.create, args=(f"k{i}", [])) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(file.read()) == 20


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("sha256", "00"),
        ("sha256", "z" * 64),
        ("rate", 0),
        ("rate", -1),
        ("expires", "2030-01-01T00:00:00"),  # of which country?
        ("write", "orders"),
    ],
)
def test_a_file_that_was_edited_badly_is_refused_with_the_place(
    file: ApiKeyFile, tmp_path: Path, member: str, value: object
) -> None:
    file.create("a", ["orders"], rate=1.0)
    path = tmp_path / "keys.json"
    content = json.loads(path.read_bytes())
    content["keys"][0][member] = value
    path.write_text(json.dumps(content))
    with pytest.raises(SettingsError, match=rf"keys\.json.*\$\.keys\[0\]\.{member}"):
        ApiKeys(path)


def test_an_expired_key_is_not_found(file: ApiKeyFile, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    over = file.create("over", ["*"], expires=now - timedelta(seconds=1))
    good = file.create("good", ["*"], expires=now + timedelta(hours=1))
    ring = ApiKeys(tmp_path / "keys.json")
    assert ring.find(digest(over.encode())) is None
    found = ring.find(digest(good.encode()))
    assert isinstance(found, ApiKey)
    assert found.name == "good"


async def test_a_key_allows_the_streams_that_its_patterns_match(
    file: ApiKeyFile, tmp_path: Path
) -> None:
    key, looks = file.create("shop", ["clicks", "na*"]), file.create("prometheus", [])
    async with echo_server(tmp_path, auth=["key"]) as server:
        for stream, allowed in {"clicks": True, "names": True, "notes": False}.items():
            expected = 200 if allowed else 403
            assert await status(server, f"/v1/streams/{stream}", key) == expected
            assert await status(server, f"/v1/receipts/{stream}", key) == expected
        refused = (await server.ask("/v1/streams/notes", headers=login(key))).problem()
        assert refused["missing"] == {"write": "notes"}
        assert "'shop' may not write to stream 'notes'" in refused["detail"]
        assert await status(server, "/metrics", looks) == 200
        assert await status(server, "/v1/streams/clicks", looks) == 403
        # The path is compared as the application compares it: no spelling gets around.
        for path in (
            "/v1/streams/n%6ftes",
            "/v1/streams/notes?x",
            "http://localhost/v1/streams/notes",
        ):
            assert await status(server, path, key) == 403
        assert (await server.ask(headers={"x-api-key": key})).status == 200


async def test_without_a_key_only_health_is_answered(file: ApiKeyFile, tmp_path: Path) -> None:
    key = file.create("shop", ["*"])
    shown = ["Bearer", "Bearer ", "Bearer msk_wrong", f"Basic {key}", key, f"Bearer {key}x", "\xff"]
    async with echo_server(tmp_path, auth=["key"]) as server:
        for headers in [{}, *({"authorization": text} for text in shown)]:
            for path in ("/v1/streams/clicks", "/v1/streams", "/v1/openapi.json", "/metrics", "/"):
                answer = await server.ask(path, headers=headers)
                assert answer.status == 401, headers
                assert answer.headers["www-authenticate"].startswith('Bearer realm="millstream"')
                assert key not in answer.problem()["detail"]
        assert server.echo.bodies == []
        assert (await server.ask("/health/live")).status == 200


async def test_a_revoked_key_is_refused_on_an_open_connection(
    file: ApiKeyFile, tmp_path: Path
) -> None:
    key, other = file.create("shop", ["*"]), file.create("other", ["*"])
    async with echo_server(tmp_path, auth=["key"]) as server, server.connect() as (reader, writer):

        async def answers(key: str, status: int) -> bool:
            writer.write(request(headers=login(key)))
            return (await read_answer(reader)).status == status

        assert await answers(key, 200)  # and is remembered from now on
        assert await answers(other, 200)
        file.revoke("shop")
        await until(lambda: answers(key, 401), seconds=10)
        assert await answers(other, 200)
        fresh = file.create("fresh", ["*"])
        await until(lambda: answers(fresh, 200), seconds=10)
        (tmp_path / "keys.json").unlink()
        await until(lambda: answers(fresh, 401), seconds=10)


async def test_an_unreadable_file_leaves_the_old_keys(
    file: ApiKeyFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = file.create("shop", ["*"])
    async with echo_server(tmp_path, auth=["key"]) as server:
        (tmp_path / "keys.json").write_bytes(b"{")
        await until(lambda: "kept the old keys" in caplog.text, seconds=10)
        assert await status(server, "/v1/streams/clicks", key) == 200


async def test_a_key_may_have_a_rate_of_its_own(file: ApiKeyFile, tmp_path: Path) -> None:
    slow, other = file.create("slow", ["*"], rate=0.1), file.create("other", ["*"])
    async with echo_server(tmp_path, auth=["key"], rate_burst=1) as server:
        assert [await status(server, "/v1/streams/clicks", slow) for _ in range(2)] == [200, 429]
        assert [await status(server, "/v1/streams/clicks", other) for _ in range(3)] == [200] * 3
