"""`/v1/connections`, and the command that shows it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import msgspec
import pytest
from click.testing import CliRunner
from tests.serve.pipeline import Pipeline, events, following, socket
from tests.wait_until import until
from websockets.exceptions import ConnectionClosed

from millstream.cli.group import millstream
from millstream.serve.connections import Connections
from millstream.serve.description.messages import ConnectionList
from millstream.serve.service import Server


async def listed(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    response = await http.get("/v1/connections")
    msgspec.json.decode(response.content, type=ConnectionList, strict=True)
    found: list[dict[str, Any]] = response.json()["connections"]
    return found


async def test_clients_of_every_transport_are_listed_with_what_they_follow_and_got(
    pipeline: Pipeline, server: Server, http: httpx.AsyncClient
) -> None:
    async with (
        socket(server) as client,
        events(http, "/v1/views/newest/changes?where=id>1") as stream,
    ):
        await client.subscribe(view="by_city", where="n > 0")
        await following(stream)
        pipeline.count("Berlin", 1)
        await client.next()
        by_transport = {each["transport"]: each for each in await listed(http)}
        over_socket, over_events = by_transport["websocket"], by_transport["sse"]
        assert over_socket["subscriptions"] == [
            {"kind": "view", "name": "by_city", "where": "n > 0"}
        ]
        assert over_events["subscriptions"] == [{"kind": "view", "name": "newest", "where": "id>1"}]
        assert over_socket["bytes"] > over_events["bytes"] > 50
        assert over_socket["rate"] > 0
        for each in (over_socket, over_events):
            assert (each["address"], each["caller"], each["behind"]) == ("127.0.0.1", "", 0)
            assert each["since"].endswith("Z")
    await until(lambda: not len(server.context.connections))
    assert await listed(http) == []


async def test_an_administrator_closes_a_websocket_and_its_client_knows_not_to_come_back(
    server: Server, http: httpx.AsyncClient
) -> None:
    async with socket(server) as client:
        await client.subscribe(view="by_city")
        [connection] = await listed(http)
        answer = await http.delete(f"/v1/connections/{connection['id']}")
        assert answer.json() == {"closed": connection["id"]}
        with pytest.raises(ConnectionClosed) as closed:
            await client.next()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4500
    assert await listed(http) == []


@pytest.mark.parametrize("named", ["true", "false"])
async def test_an_administrator_closes_a_stream_of_events(
    server: Server, http: httpx.AsyncClient, named: str
) -> None:
    address = f"/v1/views/by_city/changes?named={named}"
    async with http.stream("GET", address, headers={"Accept": "text/event-stream"}) as response:
        await until(lambda: len(server.context.connections) == 1)
        [connection] = await listed(http)
        await http.delete(f"/v1/connections/{connection['id']}")
        text = (await asyncio.wait_for(response.aread(), 10)).decode()
    last = text.strip().split("\n\n")[-1].splitlines()
    assert (last[0] == "event: closed") == (named == "true")
    assert json.loads(last[-1].removeprefix("data: "))["code"] == 4500
    assert await listed(http) == []


async def test_an_unknown_connection_is_an_error_that_says_where_to_look(
    http: httpx.AsyncClient,
) -> None:
    answer = await http.delete("/v1/connections/nobody")
    assert answer.status_code == 404
    assert "/v1/connections" in answer.json()["detail"]
    refused = await http.get("/v1/connections/nobody")
    assert (refused.status_code, refused.headers["allow"]) == (405, "DELETE")


async def test_the_command_lists_and_closes_connections(
    server: Server, http: httpx.AsyncClient
) -> None:
    def run(*arguments: str) -> str:
        return CliRunner().invoke(millstream, ["connections", *arguments]).output

    assert "no client" in await asyncio.to_thread(run, "--url", server.url)
    async with socket(server) as client:
        await client.subscribe(view="by_city", where="n > 7")
        table = await asyncio.to_thread(run, "--url", server.url)
        assert "websocket" in table
        [found] = json.loads(await asyncio.to_thread(run, "--url", server.url, "--json"))
        closed = await asyncio.to_thread(run, "close", found["id"], "--url", server.url)
        assert closed == f"closed {found['id']}\n"
        await until(lambda: not len(server.context.connections))


async def test_ids_differ_between_servers() -> None:
    assert Connections()._server != Connections()._server
