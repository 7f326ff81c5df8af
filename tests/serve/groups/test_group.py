"""Members of a group share messages: real Kafka, real servers, real WebSockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.serve.pipeline import SECONDS, Pipeline, Socket, declare, socket

from millstream.log.settings import LogSettings
from millstream.serve.service import Server


@pytest.fixture
def log(log_settings: LogSettings) -> LogSettings:
    return log_settings.model_copy(update={"partitions": 2})


@pytest.fixture
def pipeline(log: LogSettings, app_name: str) -> Pipeline:
    return Pipeline(app_name, log, declare(app_name))


@contextlib.asynccontextmanager
async def member(server: Server, **options: Any) -> AsyncIterator[Socket]:
    async with socket(server) as client:
        await join(client, **options)
        yield client


async def join(client: Socket, **options: Any) -> None:
    await client.send(
        **{"type": "subscribe", "id": "a", "view": "by_city", "group": "desk", **options}
    )


async def ack(client: Socket, message: dict[str, Any]) -> None:
    await client.send(type="ack", id="a", message=message["message"])


async def show(server: Server, name: str = "desk") -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http:
        response = await http.get(f"/v1/groups/{name}")
        found: dict[str, Any] = response.json()
        return found


def city(message: dict[str, Any]) -> tuple[str, int]:
    return message["row"]["city"], message["row"]["n"]


async def test_a_member_gets_every_change_since_the_start_of_the_log(pipeline: Pipeline) -> None:
    pipeline.count("Berlin", 1)
    pipeline.flush()
    async with pipeline.server() as server, member(server) as client:
        first = await client.next()
        assert first["type"] == "message"
        assert (first["id"], first["op"], first["key"]) == ("a", "upsert", ["Berlin"])
        assert (first["attempt"], city(first)) == (1, ("Berlin", 1))
        partition, offset = map(int, first["message"].split("-"))
        assert first["position"].endswith(f":{partition}={offset + 1}")
        await ack(client, first)
        pipeline.put("by_city", ["Berlin"], None)
        pipeline.flush()
        deleted = await client.next()
        assert (deleted["op"], deleted["key"], deleted["row"]) == ("delete", ["Berlin"], None)


async def test_the_next_change_of_a_key_waits_for_the_acknowledgement(pipeline: Pipeline) -> None:
    for n in (1, 2):
        pipeline.count("Berlin", n)
    pipeline.flush()
    async with pipeline.server() as server, member(server) as client:
        first = await client.next()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.connection.recv(), 0.3)
        await ack(client, first)
        assert city(await client.next()) == ("Berlin", 2)
