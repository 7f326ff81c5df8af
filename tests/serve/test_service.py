"""`millstream serve` as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket as sockets
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.serve.pipeline import SECONDS, Pipeline

from millstream.errors import MachineError
from millstream.runtime.home import Home

PROGRAM = """
import sys
from pathlib import Path
from millstream import App
from millstream.runtime.home import Home
from millstream.log.settings import LogSettings
from millstream.serve.service import run
from millstream.serve.settings import ServeSettings
from millstream.settings import Settings
from tests.serve.pipeline import declare

settings = Settings(log=LogSettings(bootstrap=sys.argv[2]), serve=ServeSettings(port=0))
run(declare(sys.argv[1]), settings, Home(Path(sys.argv[3])))
"""


@contextlib.asynccontextmanager
async def process(pipeline: Pipeline, home: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        pipeline.app.name,
        pipeline.log.bootstrap,
        str(home),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
            await started.wait()


async def test_a_ready_server_says_so_is_announced_in_its_home_and_ends_on_a_signal(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    pipeline.count("Rome", 1)
    pipeline.flush()
    async with process(pipeline, tmp_path) as running:
        assert running.stdout is not None
        line = (await asyncio.wait_for(running.stdout.readline(), SECONDS)).decode()
        assert line.startswith("serve ready on http://127.0.0.1:")
        url = line.split()[-1]
        assert Home(tmp_path).running()["serve"]["url"] == url
        async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as http:
            assert (await http.get("/v1/views/by_city")).json()["rows"][0]["n"] == 1
            assert (await http.post("/v1/query", json={"sql": "SELECT 1"})).status_code == 200
            accept = {"Accept": "text/event-stream"}
            async with http.stream("GET", "/v1/views/by_city/changes", headers=accept):
                running.send_signal(signal.SIGTERM)
                assert await asyncio.wait_for(running.wait(), 8) == 0
        assert await running.stdout.read() == b""
        assert "serve" not in json.loads((tmp_path / "run.json").read_text())


async def test_a_port_in_use_is_an_error_that_names_it(pipeline: Pipeline) -> None:
    with sockets.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MachineError, match=f"{port}.*serve.port"):
            async with pipeline.server(port=port):
                pass
