"""Tickets open one connection each, for a short time, on any server of the system."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
import websockets
from tests.serve.logins import Keys
from tests.serve.pipeline import SECONDS, Pipeline, Socket
from tests.wait_until import until
from websockets.asyncio.client import connect

from millstream.serve.service import Server

CHANGES = "/v1/views/by_city/changes"
EVENTS = {"Accept": "text/event-stream"}


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


async def ticket_of(server: Server, headers: dict[str, str]) -> str:
    async with httpx.AsyncClient(base_url=server.url, timeout=SECONDS, headers=headers) as http:
        answer = await http.post("/v1/tickets")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    ticket: str = answer.json()["ticket"]
    return ticket


def open_socket(server: Server, ticket: str) -> connect:
    return connect(f"{server.url.replace('http', 'ws')}/v1/connect?ticket={ticket}")


async def refusal(server: Server, ticket: str) -> str:
    """Why a ticket opens neither a WebSocket nor an event stream."""
    with pytest.raises(websockets.InvalidStatus, match="401") as refused:
        await open_socket(server, ticket)
    async with httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http:
        answer = await http.get(f"{CHANGES}?ticket={ticket}", headers=EVENTS)
    assert answer.status_code == 401
    body = bytes(refused.value.response.body or b"").decode()
    assert not any(ticket in text for text in (answer.text, body))
    detail: str = json.loads(body)["detail"]
    return detail


async def test_a_ticket_opens_one_connection_on_any_server(pipeline: Pipeline, keys: Keys) -> None:
    reader = keys.create("reader", read=["by_city"])
    async with (
        pipeline.server(**keys.settings) as server,
        pipeline.server(**keys.settings) as other,
        httpx.AsyncClient(base_url=other.url, timeout=SECONDS) as http,
    ):
        first, second = [await ticket_of(server, reader) for _ in range(2)]
        async with open_socket(other, first) as connection:
            client = Socket(connection)
            assert (await client.subscribe(view="by_city"))["type"] == "snapshot"
            answer = await client.subscribe(id="b", view="newest")
            assert "key 'reader' may not read" in answer["detail"]
            assert "was used already" in await refusal(other, first)
            async with http.stream("GET", f"{CHANGES}?ticket={second}", headers=EVENTS) as stream:
                assert stream.status_code == 200
                keys.file.revoke("reader")  # a ticket is no more than its key
                async with asyncio.timeout(2.0):
                    await stream.aread()
                with pytest.raises(websockets.ConnectionClosed) as closed:
                    await asyncio.wait_for(connection.recv(), 2.0)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 4503


async def test_forged_tickets_and_tickets_of_revoked_keys_are_refused(
    pipeline: Pipeline, keys: Keys
) -> None:
    reader = keys.create("reader", read=["*"])
    async with pipeline.server(**keys.settings) as server:
        ticket = await ticket_of(server, reader)
        middle = len(ticket) // 2
        swapped = "A" if ticket[middle] != "A" else "B"
        for forged in (
            ticket[:middle] + swapped + ticket[middle + 1 :],
            ticket[:-4],
            ticket + "AAAA",
            ticket + "%3D",
            "xxxx",
            "%00",
            "%F0%9F%98%80",
            "A" * 8000,
        ):
            assert "is not a ticket of this system" in await refusal(server, forged)
        unused = await ticket_of(server, reader)
        keys.file.revoke("reader")
        async with httpx.AsyncClient(base_url=server.url, headers=reader) as http:

            async def is_refused() -> bool:
                return (await http.get("/v1/views")).status_code == 401

            await until(is_refused, 2.0)
            assert (await http.post("/v1/tickets")).status_code == 401
        assert "not valid any more" in await refusal(server, unused)


async def test_a_ticket_is_for_connections_only(pipeline: Pipeline, keys: Keys) -> None:
    reader = keys.create("reader", read=["*"])
    async with (
        pipeline.server(**keys.settings) as server,
        httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http,
    ):
        assert (await http.post("/v1/tickets")).status_code == 401
        ticket = await ticket_of(server, reader)
        for path in ("/v1/views/by_city", "/v1/views", f"{CHANGES}", "/v1/openapi.json"):
            assert (await http.get(f"{path}?ticket={ticket}")).status_code == 401
        assert (await http.post(f"/v1/tickets?ticket={ticket}")).status_code == 401
        async with open_socket(server, ticket) as connection:  # it was not spent by that
            assert (await Socket(connection).subscribe(view="by_city"))["type"] == "snapshot"


async def test_without_logins_tickets_work_and_are_not_needed(
    server: Server, http: httpx.AsyncClient
) -> None:
    ticket = (await http.post("/v1/tickets")).json()["ticket"]
    async with open_socket(server, ticket) as connection:
        assert (await Socket(connection).subscribe(view="by_city"))["type"] == "snapshot"
    assert (await http.get("/v1/tickets")).status_code == 405
