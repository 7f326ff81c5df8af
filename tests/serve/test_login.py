"""Logins of `serve`: who may see what, over HTTP, server-sent events and WebSockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets
from tests.serve.description.test_messages import check
from tests.serve.logins import Keys, bearer, jwt_settings
from tests.serve.pipeline import SECONDS, Pipeline, Socket, events, following, socket
from tests.wait_until import until
from tests.web.auth.token_issuer import jwk, jwks, private_key, token

from millstream.serve.description.messages import AskToken, Authenticated, UsageList
from millstream.serve.service import Server
from millstream.values.clock import to_iso

CHANGES = "/v1/views/by_city/changes"


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


def client_of(server: Server, headers: dict[str, str] | None = None) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, timeout=SECONDS, headers=headers)


async def closed(client: Socket, seconds: float = SECONDS) -> tuple[int, str]:
    """Code and reason with which the server closes the connection, after any messages."""
    with contextlib.suppress(websockets.ConnectionClosed):
        async with asyncio.timeout(seconds):
            async for _ in client.connection:
                pass
    assert client.connection.close_code is not None
    return client.connection.close_code, client.connection.close_reason or ""


async def test_each_call_needs_its_right(pipeline: Pipeline, keys: Keys) -> None:
    pipeline.count("Rome", 1)
    pipeline.flush()
    nobody = bearer("msk_wrong")
    without, reader = keys.create("without"), keys.create("reader", read=["by_city"])
    other = keys.create("other", read=["newest", "ledger/*"], write=["*"], query=["newest"])
    admin = keys.create("admin", admin=True)
    everybody: tuple[dict[str, str], ...] = ({}, nobody, without, reader, other, admin)
    expected = {
        # nothing, a wrong key, no rights, a reader, a reader of others, an administrator
        "/health/live": (200, 200, 200, 200, 200, 200),
        "/health/ready": (200, 200, 200, 200, 200, 200),
        "/": (200, 200, 200, 200, 200, 200),
        "/nothing.js": (404, 404, 404, 404, 404, 404),
        "/v1/views": (401, 401, 200, 200, 200, 200),
        "/v1/openapi.json": (401, 401, 200, 200, 200, 200),
        "/v1/asyncapi.json": (401, 401, 200, 200, 200, 200),
        "/v1/nothing": (401, 401, 404, 404, 404, 404),
        "/v1/views/by_city": (401, 401, 403, 200, 403, 403),
        "/v1/views/by_city/Rome": (401, 401, 403, 200, 403, 403),
        f"{CHANGES}?wait=0": (401, 401, 403, 200, 403, 403),
        "/v1/views/per_minute/ledger?wait=0": (401, 401, 403, 403, 200, 403),
        "/v1/streams/rsvps/events?wait=0": (401, 401, 403, 403, 403, 403),
        "/v1/system": (401, 401, 403, 403, 403, 200),
        "/%76%31/system": (401, 401, 403, 403, 403, 200),
        "/metrics": (401, 401, 403, 403, 403, 200),
        "/metrics/": (401, 401, 404, 404, 404, 404),
    }
    async with pipeline.server(**keys.settings) as server, client_of(server) as http:
        for path, statuses in expected.items():
            for headers, status in zip(everybody, statuses, strict=True):
                answer = await http.get(path, headers=headers)
                assert answer.status_code == status, (path, headers, answer.text)
        refused = await http.get("/v1/views")
        assert refused.headers["www-authenticate"] == 'Bearer realm="millstream"'
        assert refused.json()["logins"] == ["key"]
        listed = [(await http.get("/v1/views", headers=each)).json() for each in (reader, other)]
        names = [[view["name"] for view in each["views"]] for each in listed]
        assert names == [["by_city"], ["newest"]]


async def test_sql_sees_only_the_views_that_it_may_query(pipeline: Pipeline, keys: Keys) -> None:
    pipeline.count("Rome", 1)
    pipeline.flush()
    some, none = keys.create("some", query=["by_*"]), keys.create("none", read=["*"])
    async with pipeline.server(**keys.settings) as server, client_of(server) as http:

        async def ask(headers: dict[str, str], sql: str) -> httpx.Response:
            return await http.post("/v1/query", json={"sql": sql}, headers=headers)

        assert (await ask(some, "SELECT n FROM by_city")).json()["rows"] == [[1]]
        for hidden in ("newest", "per_minute"):
            for sql in (
                f"SELECT * FROM {hidden}",
                f"SELECT n FROM by_city WHERE n IN (SELECT 1 FROM {hidden})",
                f"WITH a AS (SELECT * FROM main.{hidden}) SELECT * FROM a",
                f'SELECT * FROM store."{hidden}"',
            ):
                answer = await ask(some, sql)
                assert answer.status_code == 400
                assert f"there is no view '{hidden}'" in answer.json()["detail"]
        answer = await ask(none, "SELECT n FROM by_city")
        assert (answer.status_code, "there is no view" in answer.text) == (400, True)
        assert "newest" not in (await ask(some, "SELECT * FROM newes")).text


async def test_a_websocket_needs_a_login_and_the_right_to_read(
    pipeline: Pipeline, keys: Keys
) -> None:
    reader = keys.create("reader", read=["by_city"])
    async with pipeline.server(**keys.settings) as server:
        for headers in ({}, bearer("msk_wrong")):
            with pytest.raises(websockets.InvalidStatus, match="401") as refused:
                async with socket(server, additional_headers=headers):
                    pass
            assert b"send `Authorization: Bearer" in bytes(refused.value.response.body or b"")
        async with socket(server, additional_headers=reader) as client:
            assert (await client.subscribe(view="by_city"))["type"] == "snapshot"
            answer = await client.subscribe(id="b", view="newest")
            assert answer["type"] == "error"
            assert "key 'reader' may not read view 'newest'" in answer["detail"]


async def test_a_page_of_another_origin_is_refused_on_every_door(
    pipeline: Pipeline, keys: Keys
) -> None:
    reader = keys.create("reader", read=["*"], query=["*"])
    origins = {"cors_origins": ["https://shop.example"], "origins": ["https://old.example"]}
    evil, shop, old = "https://evil.example", "https://shop.example", "https://old.example"
    async with pipeline.server(**keys.settings, **origins) as server:
        async with client_of(server, reader) as http:
            for origin, allowed in ((evil, False), ("null", False), (shop, True), (old, True)):
                headers = {"Origin": origin}
                status = 200 if allowed else 403
                for path, body in (("/v1/query", {"sql": "SELECT 1"}), ("/v1/tickets", {})):
                    answer = await http.post(path, json=body, headers=headers)
                    assert answer.status_code == status, (origin, path)
                said = origin if allowed else None
                answer = await http.get("/v1/views/by_city", headers=headers)
                assert answer.headers.get("access-control-allow-origin") == said
                accept = {"Accept": "text/event-stream", **headers}
                async with http.stream("GET", CHANGES, headers=accept) as stream:
                    assert stream.headers.get("access-control-allow-origin") == said
                preflight = await http.options(
                    CHANGES,
                    headers={
                        **headers,
                        "Access-Control-Request-Method": "GET",
                        "Access-Control-Request-Headers": "authorization",
                    },
                )
                assert preflight.headers.get("access-control-allow-origin") == said
        for origin in (evil, "null"):
            with pytest.raises(websockets.InvalidStatus, match="403"):
                async with socket(server, origin=origin, additional_headers=reader):
                    pass
        for origin in (shop, old, server.url):
            async with socket(server, origin=origin, additional_headers=reader) as client:
                assert (await client.subscribe(view="by_city"))["type"] == "snapshot"


async def test_a_revoked_key_closes_its_connections_within_a_second(
    pipeline: Pipeline, keys: Keys
) -> None:
    revoked, kept = keys.create("revoked", read=["*"]), keys.create("kept", read=["*"])
    async with (
        pipeline.server(**keys.settings) as server,
        client_of(server, revoked) as http,
        socket(server, additional_headers=revoked) as gone,
        socket(server, additional_headers=kept) as stays,
        events(http, CHANGES) as stream,
    ):
        for each in (gone, stays):
            await each.subscribe(view="by_city")
        await following(stream)
        position = (await http.get("/v1/views/newest")).json()["position"]
        poll = asyncio.create_task(http.get(f"/v1/views/newest/changes?after={position}&wait=50"))
        running = asyncio.create_task(_count_up(pipeline))
        try:
            assert (await gone.next())["type"] == "change"
            await following(stream)
            began = time.monotonic()
            keys.file.revoke("revoked")
            assert (await closed(gone))[0] == 4503
            async with asyncio.timeout(SECONDS):
                async for _ in stream:
                    pass
                assert (await poll).json()["changes"] == []
            assert time.monotonic() - began < 1.0
            assert (await http.get("/v1/views/by_city")).status_code == 401
            seen = [(await stays.next())["row"]["n"] for _ in range(3)]
            assert seen == [seen[0], seen[0] + 1, seen[0] + 2]
            assert not poll.cancelled()
        finally:
            running.cancel()


async def _count_up(pipeline: Pipeline) -> None:
    n = 0
    while True:
        n += 1
        pipeline.count("Rome", n)
        await asyncio.sleep(0.01)


async def test_a_key_whose_rights_change_must_connect_again(pipeline: Pipeline, keys: Keys) -> None:
    key = keys.create("page", read=["*"], claims={"tenant": "acme"})
    async with pipeline.server(**keys.settings) as server:
        for change in ({"read": ["newest"]}, {"claims": {"tenant": "other"}}):
            async with socket(server, additional_headers=key) as client:
                keys.change("page", **change)
                assert (await closed(client))[0] == 4503
        async with socket(server, additional_headers=key) as client:
            keys.change("page", rate=5.0)  # this is no right
            answer = await client.subscribe(view="by_city")
            assert "may not read view 'by_city'" in answer["detail"]


async def test_a_swapped_link_to_the_keys_is_noticed(pipeline: Pipeline, tmp_path: Path) -> None:
    """Secret stores mount `keys.json -> ..data/keys.json`, and swap `..data`."""
    stores = [Keys(tmp_path / name) for name in ("first", "second")]
    first, second = (each.create("page", read=["*"]) for each in stores)
    (tmp_path / "..data").symlink_to("first")
    (tmp_path / "keys.json").symlink_to("..data/keys.json")
    settings = {"auth": ["key"], "keys_file": str(tmp_path / "keys.json")}
    async with (
        pipeline.server(**settings) as server,
        client_of(server) as http,
        socket(server, additional_headers=first) as client,
    ):
        assert (await http.get("/v1/views", headers=second)).status_code == 401
        (tmp_path / "..fresh").symlink_to("second")
        (tmp_path / "..fresh").replace(tmp_path / "..data")
        assert (await closed(client))[0] == 4503
        assert (await http.get("/v1/views", headers=second)).status_code == 200
        assert (await http.get("/v1/views", headers=first)).status_code == 401


async def test_a_token_is_renewed_on_its_connection(pipeline: Pipeline, tmp_path: Path) -> None:
    now = int(time.time())
    rights: dict[str, Any] = {"rights": "read:* openid", "tenant": "acme"}
    old, fresh = token(exp=now + 20, **rights), token(exp=now + 900, jti="2", **rights)
    async with (
        pipeline.server(**jwt_settings(tmp_path)) as server,
        socket(server, additional_headers=bearer(old)) as client,
    ):
        asked = await client.next()
        check(asked, AskToken)
        assert asked["expires"] == to_iso((now + 20) * 1000)
        for wrong, title in ((token(sub="other", **rights), "Forbidden"), ("x", "Unauthorized")):
            await client.send(type="authenticate", token=wrong)
            refused = await client.next()
            assert (refused["type"], refused["title"]) == ("error", title)
            assert wrong == "x" or wrong not in json.dumps(refused)
        await client.send(type="authenticate", token=fresh)
        check(await client.next(), Authenticated)
        assert (await client.subscribe(view="by_city"))["type"] == "snapshot"
        less = token(exp=now + 900, rights="read:newest", tenant="acme")
        await client.send(type="authenticate", token=less)
        assert (await closed(client))[0] == 4001


async def test_at_expiry_the_connections_close(pipeline: Pipeline, tmp_path: Path) -> None:
    short = bearer(token(exp=int(time.time()) + 3, rights=["read:*"]))
    async with (
        pipeline.server(**jwt_settings(tmp_path)) as server,
        client_of(server, short) as http,
        socket(server, additional_headers=short) as client,
        events(http, CHANGES) as stream,
    ):
        await following(stream)
        code, reason = await closed(client, 10.0)
        assert (code, "expired" in reason) == (4001, True)
        async with asyncio.timeout(2.0):
            assert [(event["type"], event["code"]) async for event in stream] == [("closed", 4001)]
        assert (await http.get("/v1/views")).status_code == 401


async def test_tokens_of_a_withdrawn_issuer_key_lose_their_connections(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    settings = jwt_settings(tmp_path, jwt_refresh=0.1)
    async with (
        pipeline.server(**settings) as server,
        socket(server, additional_headers=bearer(token(rights="read:*"))) as client,
    ):
        other = jwk(private_key("ES256", 1), "other")
        (tmp_path / "jwks.json").write_bytes(jwks(other))
        assert (await closed(client))[0] == 4503


async def test_claims_and_rights_of_a_token_reach_the_server(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    settings = jwt_settings(tmp_path, jwt_rights_claim="scope", jwt_rights_prefix="ms:")
    scope = "openid ms:read:by_city ms:admin read:newest ms:nonsense"
    async with (
        pipeline.server(**settings) as server,
        socket(server, additional_headers=bearer(token(scope=scope, tenant="acme"))) as client,
    ):
        await client.subscribe(view="by_city")
        [connection] = server.context.connections
        caller = connection.caller
        assert caller.rights.words[-2:] == ("read:by_city", "admin")
        assert (caller.kind, caller.name, caller.claims["tenant"]) == ("jwt", "shop", "acme")
        async with client_of(server, bearer(token(scope=scope))) as http:
            assert (await http.get("/v1/system")).status_code == 200


async def test_no_key_is_logged(
    pipeline: Pipeline, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    key = keys.file.create("page", read=["*"])
    with caplog.at_level(logging.DEBUG):
        for name in ("uvicorn.error", "uvicorn.access", "millstream", "picows"):
            caplog.set_level(logging.DEBUG, name)
        async with (
            pipeline.server(**keys.settings) as server,
            client_of(server, bearer(key)) as http,
            socket(server, additional_headers={"X-API-Key": key}) as client,
        ):
            await client.subscribe(view="by_city")
            ticket = (await http.post("/v1/tickets")).json()["ticket"]
            await client.send(type="authenticate", token=key, more=1)
            await http.get(f"/v1/views/by_city?ticket={ticket}")
            accept = {"Accept": "text/event-stream"}
            async with (
                client_of(server) as other,
                other.stream("GET", f"{CHANGES}?ticket={ticket}", headers=accept) as stream,
            ):
                assert stream.status_code == 200
                answer = await http.get(f"{CHANGES}?ticket={ticket}&nonsense=1")
                assert (answer.status_code, ticket in answer.text) == (400, False)
    secrets = (key, ticket)
    server_logs = [
        each
        for each in caplog.records
        if not each.name.startswith(("httpx", "websockets", "httpcore"))
    ]
    assert not any(secret in each.getMessage() for each in server_logs for secret in secrets)


async def test_a_caller_may_have_so_many_connections(pipeline: Pipeline, keys: Keys) -> None:
    key, other = keys.create("page", read=["*"]), keys.create("other", read=["*"])
    limit = {"max_connections_per_caller": 2}
    async with (
        pipeline.server(**keys.settings, **limit) as server,
        client_of(server, key) as http,
        events(http, CHANGES) as stream,
    ):
        await following(stream)
        async with socket(server, additional_headers=key):
            with pytest.raises(websockets.InvalidStatus, match="429"):
                async with socket(server, additional_headers=key):
                    pass
            answer = await http.get(CHANGES, headers={"Accept": "text/event-stream"})
            assert (answer.status_code, "close one" in answer.text) == (429, True)
            async with socket(server, additional_headers=other):
                pass

        async def is_allowed() -> bool:
            accept = {"Accept": "text/event-stream"}
            async with http.stream("GET", CHANGES, headers=accept) as again:
                return again.status_code == 200

        await until(is_allowed)  # the server notices a closed connection a little later


async def test_requests_are_counted_by_caller(pipeline: Pipeline, keys: Keys) -> None:
    fast, other = keys.create("fast", rate=1000.0), keys.create("other")
    limits: dict[str, Any] = {"rate": 0.1, "rate_burst": 20}  # two requests at once
    async with pipeline.server(**keys.settings, **limits) as server, client_of(server) as http:
        answers = [await http.get("/v1/views", headers=fast) for _ in range(3)]
        assert [each.status_code for each in answers] == [200, 200, 429]
        assert "more than 0.1 requests a second" in answers[-1].json()["detail"]
        assert answers[0].headers["ratelimit"].startswith('"requests";')
        with pytest.raises(websockets.InvalidStatus, match="429"):
            async with socket(server, additional_headers=fast):
                pass
        assert (await http.get("/v1/views", headers=other)).status_code == 200


async def test_usage_is_counted_by_caller(pipeline: Pipeline, keys: Keys) -> None:
    reader, admin = keys.create("reader", read=["*"], query=["*"]), keys.create("ada", admin=True)
    async with (
        pipeline.server(**keys.settings) as server,
        client_of(server) as http,
        socket(server, additional_headers=reader) as client,
    ):
        await client.subscribe(view="by_city")
        rows = await http.get("/v1/views/by_city", headers=reader)
        await http.post("/v1/query", json={"sql": "SELECT 1"}, headers=reader)
        answer = (await http.get("/v1/usage", headers=reader)).json()
        check(answer, UsageList)
        [own] = answer["callers"]
        assert (own["caller"], own["requests"], own["connections"]) == ("key reader", 4, 1)
        assert own["events"] == 1
        assert own["bytes"] > len(rows.content)
        assert own["query_seconds"] > 0
        everybody = (await http.get("/v1/usage", headers=admin)).json()["callers"]
        assert [each["caller"] for each in everybody] == ["key reader", "key ada"]
        text = (await http.get("/metrics", headers=admin)).text
        assert 'millstream_serve_caller_requests_total{caller="key reader"} 4' in text
