"""Changes over HTTP: server-sent events and long polls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from tests.serve.stage import SECONDS, Pipeline, until

from millstream.serve.service import Server

Event = dict[str, Any]


@asynccontextmanager
async def events(
    http: httpx.AsyncClient, path: str, headers: dict[str, str] | None = None
) -> AsyncIterator[AsyncIterator[Event]]:
    accept = {"Accept": "text/event-stream", **(headers or {})}
    async with http.stream("GET", path, headers=accept) as response:
        assert response.headers["content-type"] == "text/event-stream"
        yield _parse(response.aiter_bytes())


async def _lines(parts: AsyncIterator[bytes]) -> AsyncIterator[str]:
    # httpx's own lines end at U+2028 too, which those of server-sent events do not.
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.decode()


async def _parse(parts: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    fields: dict[str, str] = {}
    async for line in _lines(parts):
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        else:
            if "data" in fields:
                event = json.loads(fields["data"])
                assert event["type"] == fields["event"]
                assert event["position"] == fields["id"]
                yield event
            fields = {}


async def following(stream: AsyncIterator[Event]) -> Event:
    return await asyncio.wait_for(anext(stream), SECONDS)


async def test_events_are_a_snapshot_and_then_changes_and_resume_by_their_id(
    http: httpx.AsyncClient, pipeline: Pipeline
) -> None:
    async with events(http, "/v1/views/by_city/changes") as stream:
        assert (await following(stream))["type"] == "snapshot"
        pipeline.count("Rome", 1)
        change = await following(stream)
        assert (change["op"], change["row"]) == ("upsert", {"city": "Rome", "n": 1})
    pipeline.count("Rome", 2)
    again = {"Last-Event-ID": change["position"]}
    async with events(http, "/v1/views/by_city/changes", again) as stream:
        assert (await following(stream))["row"]["n"] == 2


async def test_text_with_line_ends_stays_one_event(
    http: httpx.AsyncClient, pipeline: Pipeline
) -> None:
    text = "a\nb\r\n\u2028data: x\n\nevent: gap"
    async with events(http, "/v1/views/by_city/changes?where=n%3D1") as stream:
        await following(stream)
        pipeline.count(text, 1)
        assert (await following(stream))["row"]["city"] == text


async def test_a_streams_events_come_as_they_are(
    http: httpx.AsyncClient, pipeline: Pipeline
) -> None:
    pipeline.event(id=1, city="Rome", extra={"a": [1]})
    pipeline.flush()
    async with events(http, "/v1/streams/rsvps/events") as stream:
        first = await following(stream)
        assert first["rows"][0]["row"] == {"id": 1, "city": "Rome", "extra": {"a": [1]}}
        pipeline.event(id=2, city="Oslo")
        assert (await following(stream))["row"]["id"] == 2


async def test_clients_of_events_are_counted_while_they_stay(
    http: httpx.AsyncClient, server: Server
) -> None:
    async with events(http, "/v1/views/by_city/changes") as stream:
        await following(stream)
        assert server.state.clients == 1
    await until(lambda: server.state.clients == 0)
    assert not server.state.views["by_city"].watchers


async def test_a_poll_waits_for_a_change_and_brings_all_there_are(
    http: httpx.AsyncClient, pipeline: Pipeline
) -> None:
    path = "/v1/views/by_city/changes"
    first = (await http.get(path)).json()
    assert first["rows"] == []
    asked = {"after": first["position"], "wait": "20"}
    poll = asyncio.create_task(http.get(path, params=asked))
    pipeline.count("Rome", 1)
    answer = (await poll).json()
    assert [change["row"]["n"] for change in answer["changes"]] == [1]
    for n in range(2, 50):
        pipeline.count("Rome", n)
    pipeline.flush()
    seen, position = [1], answer["position"]
    while seen[-1] < 49:
        answer = (await http.get(path, params={"after": position, "wait": "20"})).json()
        seen += [change["row"]["n"] for change in answer["changes"]]
        position = answer["position"]
    assert seen == list(range(1, 50))


async def test_a_poll_in_which_nothing_happens_ends_with_the_position(
    http: httpx.AsyncClient,
) -> None:
    path = "/v1/views/by_city/changes"
    first = (await http.get(path)).json()
    answer = (await http.get(path, params={"after": first["position"], "wait": "0.1"})).json()
    assert answer == {"position": first["position"], "watermark": None, "changes": []}


async def test_a_poll_from_another_epoch_gets_a_gap_and_the_rows(
    http: httpx.AsyncClient, pipeline: Pipeline, server: Server
) -> None:
    pipeline.count("Rome", 1)
    await until(lambda: len(server.state.views["by_city"].table))
    answer = (await http.get("/v1/views/by_city/changes", params={"after": "other:0=3"})).json()
    assert answer["gap"]["asked"] == "other:0=3"
    assert answer["rows"][0]["row"]["n"] == 1
