"""Three collectors, or three processes of one: senders use any of them, and any may be killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path

import httpx
import pytest
from tests.collect.collector_processes import Collector, collector, collectors, free_port
from tests.collect.conftest import read_topic, until
from tests.collect.counting_senders import pipeline
from tests.collect.roaming_senders import RoamingSenders

from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic

SECONDS = 4.0


async def _at_rest(http: httpx.AsyncClient, url: str) -> None:
    async def nothing_waits() -> bool:
        health = (await http.get(f"{url}/health/ready")).json()
        states = {worker["state"] for worker in health.get("workers", ())}
        return states <= {"ready"} and health["journal"]["pending_entries"] == 0

    await until(nothing_waits, seconds=60)


async def _judge(senders: RoamingSenders, app: str, log: LogSettings, seed: int) -> None:
    told = f"seed {seed}: {senders.report()}"
    print(told)
    records = await asyncio.to_thread(read_topic, log, stream_topic(app, "counts"))
    assert senders.violations(records) == [], told


async def _answers(http: httpx.AsyncClient, urls: list[str], receipt: str) -> list[str]:
    return [(await http.get(f"{url}/v1/receipts/{receipt}")).json()["state"] for url in urls]


@pytest.mark.timeout(240)
async def test_killed_processes_of_one_collector_lose_double_and_reorder_nothing(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    seed = random.randrange(10**6)
    fresh = httpx.Limits(max_keepalive_connections=0)
    with collectors(pipeline, app_name, log_settings, tmp_path, 3) as running:
        url = await asyncio.to_thread(running.ready)
        senders = RoamingSenders([url], random.Random(seed))

        def kill(chance: random.Random) -> None:
            workers = running.workers()
            if workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(workers), signal.SIGKILL)

        await senders.run(SECONDS, kill)
        running.stop(signal.SIGKILL)  # and what waits in three journals is for one to send
    with collector(pipeline, app_name, log_settings, tmp_path) as alone:
        url = await asyncio.to_thread(alone.ready)
        async with httpx.AsyncClient(timeout=60, limits=fresh, trust_env=False) as http:
            await _at_rest(http, url)
            await _judge(senders, app_name, log_settings, seed)
            for receipt in senders.receipts(3):
                assert await _answers(http, [url], receipt) == ["logged"]
        alone.stop()


@pytest.mark.timeout(240)
async def test_killed_collectors_with_their_own_homes_lose_double_and_reorder_nothing(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    seed = random.randrange(10**6)
    homes = [tmp_path / str(number) for number in range(3)]
    ports = [free_port() for _ in homes]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with contextlib.ExitStack() as stack:

        def start(number: int) -> Collector:
            return stack.enter_context(
                collector(pipeline, app_name, log_settings, homes[number], port=ports[number])
            )

        running = [await asyncio.to_thread(start, number) for number in range(3)]
        senders = RoamingSenders(urls, random.Random(seed))

        def kill(chance: random.Random) -> None:
            number = chance.randrange(3)
            running[number].stop(signal.SIGKILL)
            running[number] = start(number)

        await senders.run(SECONDS, kill)
        for each in running:
            await asyncio.to_thread(each.ready)
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            for url in urls:
                await _at_rest(http, url)
            await _judge(senders, app_name, log_settings, seed)
            for receipt in senders.receipts(3):
                assert await _answers(http, urls, receipt) == ["logged"] * 3
