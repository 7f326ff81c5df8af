"""Scripted servers that end with the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from tests.client.scripted_servers import (
    HttpPeer,
    HttpScript,
    SocketPeer,
    SocketScript,
    StartHttp,
    StartSocket,
)


@pytest.fixture
async def peers() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def http_peer(peers: AsyncExitStack) -> StartHttp:
    async def start(script: HttpScript) -> HttpPeer:
        return await peers.enter_async_context(HttpPeer(script).running())

    return start


@pytest.fixture
def socket_peer(peers: AsyncExitStack) -> StartSocket:
    async def start(script: SocketScript) -> SocketPeer:
        return await peers.enter_async_context(SocketPeer(script).running())

    return start
