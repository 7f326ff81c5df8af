"""Changes over HTTP: server-sent events and long polls."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from tests.serve.pipeline import SECONDS, Pipeline, events, following, socket
from tests.wait_until import until

from millstream.serve.service import Server
from millstream.serve.views import on_demand


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


async def test_rows_that_a_snapshot_leaves_out_are_counted(
    http: httpx.AsyncClient, pipeline: Pipeline, server: Server
) -> None:
    for number in range(130):
        pipeline.append(number)
    pipeline.flush()
    await until(lambda: len(server.context.views["newest"].table) == 130)
    path = "/v1/views/newest/changes"
    async with events(http, path) as stream, socket(server) as client:
        told = [await following(stream), await client.subscribe(view="newest")]
    told += [(await http.get(path)).json(), (await http.get(f"{path}?limit=200")).json()]
    assert [(each["total"], each["truncated"], len(each["rows"])) for each in told] == [
        *([(130, True, 100)] * 3),
        (130, False, 130),
    ]


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
        assert len(server.context.connections) == 1
    await until(lambda: len(server.context.connections) == 0)
    assert not server.context.views["by_city"].subscribers


async def test_a_poll_waits_for_a_change_and_returns_all_changes(
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


async def test_a_poll_without_changes_ends_with_the_position(
    http: httpx.AsyncClient,
) -> None:
    path = "/v1/views/by_city/changes"
    first = (await http.get(path)).json()
    answer = (await http.get(path, params={"after": first["position"], "wait": "0.1"})).json()
    assert answer == {"position": first["position"], "watermark": None, "changes": []}


async def test_from_another_epoch_a_client_gets_a_gap_and_the_rows(
    http: httpx.AsyncClient, pipeline: Pipeline, server: Server
) -> None:
    pipeline.count("Rome", 1)
    await until(lambda: len(server.context.views["by_city"].table))
    answer = (await http.get("/v1/views/by_city/changes", params={"after": "other:0=3"})).json()
    assert answer["gap"]["asked"] == "other:0=3"
    assert answer["rows"][0]["row"]["n"] == 1
    other = {"Last-Event-ID": "other:0=3"}
    async with events(http, "/v1/views/by_city/changes", other) as stream:
        assert [(await following(stream))["type"] for _ in range(2)] == ["gap", "snapshot"]


async def test_polls_return_every_large_event_that_is_no_longer_in_memory(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_demand, "_NEWEST", 1)
    for number in range(150):  # more than an answer holds
        pipeline.event(id=number, city="x" * 20_000, mtime="2026-01-01T12:00:00Z")
    pipeline.flush()
    async with pipeline.server() as server:
        found: list[int] = []
        asked = {"wait": "0", "after": await _beginning(server.url)}
        async with httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http:
            while len(found) < 150:
                page = (await http.get("/v1/streams/rsvps/events", params=asked)).json()
                assert page["changes"], "it ended early"
                found += [change["row"]["id"] for change in page["changes"]]
                asked["after"] = page["position"]
    assert sorted(found) == list(range(150)), "each once; Kafka may have retried a batch"


async def _beginning(url: str) -> str:
    async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as http:
        now = (await http.get("/v1/streams/rsvps/events", params={"wait": "0"})).json()
    return f"{now['position'].partition(':')[0]}:0=0"
