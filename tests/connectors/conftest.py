"""Fixtures for the tests of sources."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import uvloop
from tests.collect.websocket_peer import Peer
from tests.connectors.postgres_server import PostgresServer


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}  # as in the collector


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    await peer.start()
    yield peer
    await peer.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests; each test uses its own tables and slots."""
    server = PostgresServer()
    try:
        server.create()
        yield server
    finally:
        server.remove()
