"""Members of a group on real WebSockets, and what the server says about the group."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
from tests.serve.pipeline import SECONDS, Socket, socket

from millstream.serve.service import Server


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


async def handled(server: Server, **counts: int) -> bool:
    found = await show(server)
    return all(found.get(name) == count for name, count in counts.items())
