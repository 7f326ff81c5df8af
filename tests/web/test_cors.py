"""Web pages of other origins may do nothing unless the settings name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.web.echo_server import Answer, EchoServer, echo_server

from millstream.collect.settings import CollectSettings
from millstream.web.asgi import Receive, Scope, Send, send_json, send_problem
from millstream.web.cors import check_origin
from millstream.web.problem import Problem

SHOP = "https://shop.example"


async def preflight(server: EchoServer, origin: str) -> Answer:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type, ce-id, authorization",
    }
    return await server.ask(body=b"", method="OPTIONS", headers=headers)


def allowing(answer: Answer) -> dict[str, str]:
    return {name: text for name, text in answer.headers.items() if name.startswith("access-")}


async def test_cors_is_off_by_default(tmp_path: Path) -> None:
    async with echo_server(tmp_path) as server:
        assert allowing(await preflight(server, SHOP)) == {}
        assert allowing(await server.ask(headers={"origin": SHOP})) == {}


async def test_a_named_origin_may_send_and_no_other(tmp_path: Path) -> None:
    async with echo_server(tmp_path, cors_origins=[SHOP], auth=["key"]) as server:
        answer = await preflight(server, SHOP)  # which carries no login
        assert (answer.status, answer.body) == (204, b"")
        assert allowing(answer) == {
            "access-control-allow-origin": SHOP,
            "access-control-allow-methods": "GET, HEAD, POST",
            "access-control-allow-headers": "content-type, ce-id, authorization",
            "access-control-max-age": "600",
        }
        assert "origin" in answer.headers["vary"]
        refused = await server.ask(headers={"origin": SHOP})  # that the page can read why
        assert refused.status == 401
        assert refused.headers["access-control-allow-origin"] == SHOP
        assert "retry-after" in refused.headers["access-control-expose-headers"]
        for other in (
            "https://evil.example",
            f"{SHOP}.evil.example",
            "http://shop.example",
            "null",
        ):
            assert allowing(await preflight(server, other)) == {}
            answer = await server.ask(headers={"origin": other})
            assert allowing(answer) == {}
            assert answer.headers["vary"] == "origin"
        assert server.echo.bodies == []


async def test_any_origin_is_answered_with_a_star(tmp_path: Path) -> None:
    async with echo_server(tmp_path, cors_origins=["*"]) as server:
        answer = await preflight(server, SHOP)
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("origin", [f"{SHOP}/", "shop.example", "https://*.example/x", "ftp://x"])
def test_an_invalid_origin_is_refused(origin: str) -> None:
    given: dict[str, Any] = {"cors_origins": [origin]}
    with pytest.raises(ValueError, match="is no origin"):
        CollectSettings(**given)


async def test_a_page_that_does_not_ask_first_is_refused_unless_it_is_named(tmp_path: Path) -> None:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            origin = dict(scope["headers"])[b"origin"].decode()
            check_origin(scope, origin, "collect.cors_origins")
            await send_json(send, {})
        except Problem as problem:
            await send_problem(send, problem)

    async with echo_server(tmp_path, application=application, cors_origins=[SHOP]) as server:
        for origin, status in {
            SHOP: 200,
            "https://evil.example": 403,
            "http://localhost": 200,
        }.items():
            assert (await server.ask(headers={"origin": origin})).status == status
