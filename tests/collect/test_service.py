"""The collector as a process: it starts, announces itself, reports, reads sources, and stops."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest
from tests.collect.conftest import Collector, Peer, click, collect, headers, read_topic, shop, until
from websockets.asyncio.server import ServerConnection

from millstream.collect.service import run
from millstream.connectors import WebSocketSource
from millstream.errors import HomeInUse, MachineError
from millstream.log.settings import LogSettings
from millstream.log.topic_names import audit_topic
from millstream.runtime.home import Home
from millstream.runtime.listen import bind
from millstream.settings import Settings
from millstream.values.report import ProcessReport

_MAIN = """
import sys
from pathlib import Path
from millstream.pipeline.app import App
from millstream.collect.service import run
from millstream.runtime.home import Home
from millstream.settings import Settings

name, home, settings = sys.argv[1:]
app = App(name)
app.stream("clicks", schema="id LONG", key="id")
run(app, Settings.model_validate_json(settings), Home(Path(home)))
"""


@pytest.fixture
async def process(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    settings = {"log": {"bootstrap": log_settings.bootstrap}, "collect": {"port": 0}}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *["-c", _MAIN, app_name, str(tmp_path), json.dumps(settings)],
        stdout=asyncio.subprocess.PIPE,
    )
    yield process
    if process.returncode is None:
        process.kill()
    await process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_announces_that_it_is_ready_and_stops_within_seconds(
    process: asyncio.subprocess.Process, tmp_path: Path, number: signal.Signals
) -> None:
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
    assert line.startswith("collect ready on http://127.0.0.1:")
    url = line.split()[-1]
    entry = Home(tmp_path).running()["collect"]
    assert (entry["pid"], entry["url"]) == (process.pid, url)
    async with httpx.AsyncClient(base_url=url) as http:
        # A connection that a sender keeps open does not hold up the end.
        response = await http.post("/v1/streams/clicks", content=b'{"id": 1}')
        assert response.status_code == 200
        process.send_signal(number)
        process.send_signal(number)
        started = time.monotonic()
        assert await asyncio.wait_for(process.wait(), 20) == 0
    assert time.monotonic() - started < 10
    assert Home(tmp_path).running() == {}
    assert await process.stdout.read() == b""


def test_a_port_in_use_is_an_error_that_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(MachineError, match=rf"{port}.*another process.*collect\.port"):
            bind("127.0.0.1", port, tier="collect")


async def test_it_reports_every_second_and_the_counts_add_up(collector: Collector) -> None:
    await collector.post("clicks", b"\n".join([click(1), click(2), b"{}"]))
    topic = audit_topic(collector.app.name)

    async def reported() -> ProcessReport | None:
        records = await asyncio.to_thread(read_topic, collector.log, topic)
        reports = [
            msgspec.json.decode(record.value or b"", type=ProcessReport) for record in records
        ]
        return reports[-1] if reports and reports[-1].streams["clicks"].rejected else None

    await until(reported)
    report = await reported()
    assert report is not None
    counts = report.streams["clicks"]
    assert (counts.accepted, counts.logged, counts.rejected, counts.pending) == (3, 2, 1, 0)
    assert counts.missing() == 0
    assert counts.rate > 0
    assert counts.latency_ms is not None
    assert counts.latency_ms.count == 2
    steps = [counts.journaled_ms, counts.sent_ms, counts.latency_ms]
    assert all(step is not None and 0 < step.min <= step.mean <= step.max for step in steps)
    assert report.tier == "collect"
    assert report.started_at <= report.at
    assert report.journal is not None
    assert (report.journal.entries, report.journal.broken) == (0, "")
    assert 0 < report.journal.stored_bytes < report.journal.max_bytes
    assert not report.ended
    metrics = (await collector.http.get("/metrics")).text
    assert 'millstream_collect_unaccounted{stream="clicks"} 0\n' in metrics


async def test_events_of_a_source_are_logged_or_rejected(
    app_name: str, log_settings: LogSettings, tmp_path: Path, peer: Peer
) -> None:
    messages: list[str | bytes] = [
        click(0),
        click(1).decode(),
        b"[" + click(2) + b"," + click(3) + b"]",
        click(4) + b"\n" + click(5) + b"\n",
        "garbage",
        b"\xff\xfe\x00",
        "",
        b'{"id": "x", "at": 1}',
        b"[1, 2",
        click(6),
    ]

    async def serve(connection: ServerConnection) -> None:
        for message in messages:
            await connection.send(message)
        await connection.wait_closed()

    peer.serve = serve
    app = shop(app_name, WebSocketSource(peer.url))
    async with collect(app, log_settings, tmp_path) as running:

        async def all_read() -> bool:
            return len(await running.logged("clicks")) == 7

        await until(all_read)
        records = await running.logged("clicks")
        assert [int(record.key or b"") for record in records] == list(range(7))
        assert {headers(record)["ce_source"] for record in records} == {peer.url}
        rejected = [record.value for record in await running.rejected("clicks")]
        assert rejected == [b"garbage", b"\xff\xfe\x00", b'{"id": "x", "at": 1}', b"[1, 2"]


async def test_open_requests_are_finished_before_it_stops(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    body = b"\n".join(click(number) for number in range(5000))
    async with httpx.AsyncClient(timeout=30) as http:
        async with collect(shop(app_name), log_settings, tmp_path) as running:
            url = f"{running.url}/v1/streams/clicks"
            sending = asyncio.create_task(http.post(url, content=body))

            async def under_way() -> bool:
                idle = "millstream_collect_pending_bytes 0\n"
                return sending.done() or idle not in (await running.http.get("/metrics")).text

            await until(under_way)
        response = await sending
    assert response.json()["accepted"] == 5000
    assert len(await running.logged("clicks")) == 5000


async def test_two_collectors_on_one_home_are_refused(
    process: asyncio.subprocess.Process, app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    assert process.stdout is not None
    await asyncio.wait_for(process.stdout.readline(), 60)
    with pytest.raises(HomeInUse, match=str(process.pid)):
        await asyncio.to_thread(run, shop(app_name), Settings(log=log_settings), Home(tmp_path))
    with pytest.raises(HomeInUse, match=str(process.pid)):
        async with collect(shop(app_name), log_settings, tmp_path):
            pass


async def test_a_collector_keeps_its_id_and_continues_its_sequence_after_a_restart(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    for _ in range(3):
        async with collect(shop(app_name), log_settings, tmp_path) as running:
            assert (await running.post("clicks", click(1))).status_code == 200
    told = [headers(record) for record in await running.logged("clicks")]
    assert len({each["ce_collector"] for each in told}) == 1
    assert [each["ce_sequence"] for each in told] == ["1", "2", "3"]
    assert len({each["ce_id"] for each in told}) == 3
