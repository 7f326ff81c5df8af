"""SQL, `GET` and the topic hold the same rows of every view, on every server."""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import Any

import httpx
from confluent_kafka import Consumer, TopicPartition
from tests.serve.pipeline import SECONDS, Pipeline
from tests.wait_until import until

from millstream.log.topic_names import view_topic
from millstream.serve.service import Server

NEWEST = 80
COLUMNS = {"by_city": ["city", "n"], "per_minute": ["n"], "newest": ["id", "city"]}
KEYED = {"by_city": True, "per_minute": True, "newest": False}


def window(minute: int) -> dict[str, str]:
    return {
        "start": f"2026-11-16T16:{minute:02}:00.000000Z",
        "end": f"2026-11-16T16:{minute + 1:02}:00.000000Z",
    }


def write(pipeline: Pipeline, dice: random.Random, changes: int, start: int) -> None:
    """Changes of all views; most are of a table, so that the others are the quiet ones."""
    for number in range(start, start + changes):
        city = f"city {dice.randrange(50)}"
        if dice.random() < 0.1:
            pipeline.put("by_city", [city], None)
        else:
            pipeline.put("by_city", [city], {"city": city, "n": number}, number)
        if dice.random() < 0.1:
            minute = window(dice.randrange(30))
            pipeline.put("per_minute", [minute], {"window": minute, "n": number}, number)
        if dice.random() < 0.05:
            pipeline.append(number, city)
    pipeline.flush()


def topic_rows(pipeline: Pipeline, view: str) -> list[list[Any]]:
    """What the view is by its topic: the last row of each key, or the newest ones."""
    topic = view_topic(pipeline.app.name, view)
    reader = Consumer(
        {"bootstrap.servers": pipeline.log.bootstrap, "group.id": "x", "enable.partition.eof": True}
    )
    partitions = reader.list_topics(topic, 10).topics[topic].partitions
    reader.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    rows: dict[Any, Any] = {}
    left = len(partitions)
    while left:
        message = reader.poll(10)
        assert message is not None
        if message.error():
            left -= 1  # its end
            continue
        key = message.key() if KEYED[view] else (message.partition(), message.offset())
        rows.pop(key, None)
        if (value := message.value()) is not None:
            rows[key] = json.loads(value)
    reader.close()
    kept = list(rows.values()) if KEYED[view] else list(rows.values())[-NEWEST:]
    return sorted([row[name] for name in COLUMNS[view]] for row in kept)


async def check(pipeline: Pipeline, http: httpx.AsyncClient, server: Server) -> None:
    for view, names in COLUMNS.items():
        expected = await asyncio.to_thread(topic_rows, pipeline, view)

        def served(view: str = view, names: list[str] = names) -> list[list[Any]]:
            table = server.context.views[view].table
            found = table.rows.values() if table.keyed else table.newest
            return sorted([row[name] for name in names] for row in found)

        await until(lambda expected=expected, served=served: served() == expected)  # type: ignore[misc]
        got = (await http.get(f"/v1/views/{view}?limit=100000")).json()["rows"]
        assert sorted([row[name] for name in names] for row in got) == expected, view
        sql = f"SELECT {', '.join(names)} FROM {view}"
        asked = (await http.post("/v1/query", json={"sql": sql})).json()["rows"]
        assert sorted(asked) == expected, view
        sql = f"SELECT count(*) FROM {view}"
        counted = (await http.post("/v1/query", json={"sql": sql})).json()["rows"]
        assert counted == [[len(expected)]], view


async def test_sql_get_and_the_topic_hold_the_same_rows_of_every_view(pipeline: Pipeline) -> None:
    dice = random.Random(3)
    async with (
        pipeline.server(newest_rows=NEWEST) as one,
        pipeline.server(newest_rows=NEWEST) as other,
        httpx.AsyncClient(base_url=one.url, timeout=SECONDS) as first,
        httpx.AsyncClient(base_url=other.url, timeout=SECONDS) as second,
    ):
        clients = ((first, one), (second, other))
        for round_ in range(5):
            write(pipeline, dice, 800, 1 + round_ * 800)
            if round_ == 2:  # a view is computed again, into another topic
                pipeline.recreate("newest")
                pipeline.append(1)
                pipeline.flush()
            if round_ == 3:
                assert one.context.sql.pid is not None
                os.kill(one.context.sql.pid, 9)
            for http, server in clients:
                await check(pipeline, http, server)
