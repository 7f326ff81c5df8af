"""The metrics of groups, as Prometheus reads them."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
from tests.serve.groups.members import ack, member
from tests.serve.pipeline import Pipeline
from tests.wait_until import until

from millstream.errors import LogError
from millstream.serve.groups.definition import GroupDefinition, GroupRequest
from millstream.serve.groups.group_metrics import GroupMetrics, StoredFigures
from millstream.serve.service import Server
from millstream.values.visibility import SEES_ALL


async def scrape(http: httpx.AsyncClient, group: str = "desk") -> dict[str, int]:
    text = (await http.get("/metrics")).text
    found = re.findall(rf'^millstream_group_(\w+){{group="{group}"}} (\d+)$', text, re.MULTILINE)
    return {name: int(amount) for name, amount in found}


async def test_a_group_has_metrics_with_and_without_members(
    pipeline: Pipeline, server: Server, http: httpx.AsyncClient
) -> None:
    for city in ("Rome", "Oslo"):
        pipeline.count(city, 1)
    pipeline.flush()

    async def are(**wanted: int) -> bool:
        found = await scrape(http)
        return wanted.items() <= found.items()

    async with member(server, max_attempts=2) as client:
        first = await client.next()
        await client.send(type="nack", id="a", message=first["message"], reason="no")
        second, again = sorted([await client.next(), await client.next()], key=_attempt)
        await until(lambda: are(members=1, pending=2, redelivered_total=1, lag=2))
        await client.send(type="nack", id="a", message=again["message"], reason="no")
        await ack(client, second)
        await until(lambda: are(pending=0, set_aside_total=1, lag=0))
    await until(lambda: are(members=0))
    pipeline.count("Bonn", 1)
    pipeline.flush()
    await until(lambda: are(members=0, lag=1, set_aside_total=1))


def _attempt(message: dict[str, Any]) -> int:
    return int(message["attempt"])


def definition(name: str) -> GroupDefinition:
    request = GroupRequest(name=name, kind="view", source="by_city")
    return request.define(start="x:0=0", created_at=0, creator="a", visibility=SEES_ALL)


async def test_groups_that_kafka_says_nothing_about_are_left_out() -> None:
    async def describe(group: GroupDefinition) -> dict[str, Any]:
        if group.name == "broken":
            raise LogError("Kafka does not answer")
        return {"lag": 3, "set_aside": 1, **({"warning": "no view"} if group.name == "old" else {})}

    metrics = GroupMetrics({name: definition(name) for name in ("broken", "old", "desk")}, describe)
    assert await metrics.read() == {"desk": StoredFigures(3, 1)}


async def test_scrapes_share_one_answer_and_do_not_wait_for_a_slow_one() -> None:
    asked = 0
    never = asyncio.Event()

    async def describe(group: GroupDefinition) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        if group.name == "slow":
            await never.wait()
        return {"lag": 3, "set_aside": 1}

    metrics = GroupMetrics({name: definition(name) for name in ("desk", "slow")}, describe)
    found = await asyncio.gather(*(metrics.read() for _ in range(3)))
    assert found == [{"desk": StoredFigures(3, 1)}] * 3
    assert asked == 2
    await metrics.stop()
