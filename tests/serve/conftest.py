"""A pipeline and a server for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from tests.serve.pipeline import SECONDS, Pipeline

from millstream.log.settings import LogSettings
from millstream.serve.service import Server


@pytest.fixture
def pipeline(log_settings: LogSettings, app_name: str) -> Pipeline:
    return Pipeline(app_name, log_settings)


@pytest.fixture
async def server(pipeline: Pipeline) -> AsyncIterator[Server]:
    async with pipeline.server() as running:
        yield running


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as client:
        yield client
