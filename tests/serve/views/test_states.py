"""Rows of windows have their state, on every transport."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import msgspec
from confluent_kafka import Producer
from tests.serve.pipeline import Pipeline, socket
from tests.wait_until import until

from millstream.client.client import Client
from millstream.log.topic_names import audit_topic
from millstream.serve.service import Server
from millstream.values.report import ProcessReport, StreamCounts, ViewCounts
from millstream.values.view_description import ViewColumn

WINDOW = {"start": "2026-11-16T16:41:00.000000Z", "end": "2026-11-16T16:42:00.000000Z"}
PASSED = 1_794_847_320_000  # the window's end


def put(pipeline: Pipeline, n: int, state: str = "") -> None:
    more = {"_state": state} if state else {}
    pipeline.put("per_minute", [WINDOW], {"window": WINDOW, "n": n, **more}, n)
    pipeline.flush()


async def shown(server: Server, n: int, state: str) -> None:
    rows = server.context.views["per_minute"].table.rows
    await until(lambda: [(r["n"], r["_state"]) for r in rows.values()] == [(n, state)])


def report(pipeline: Pipeline, watermark: int, state: Any = "running", error: str = "") -> None:
    """What analyze tells each second."""
    now = time.time_ns() // 1_000_000
    told = ProcessReport(
        "analyze",
        "a",
        now,
        now,
        streams={"rsvps": StreamCounts(watermark=watermark)},
        views={"per_minute": ViewCounts(state=state, error=error, watermark=watermark)},
    )
    producer = Producer({"bootstrap.servers": pipeline.log.bootstrap})
    producer.produce(audit_topic(pipeline.app.name), msgspec.json.encode(told))
    producer.flush(10)


async def test_a_new_state_of_a_row_is_a_change(pipeline: Pipeline, server: Server) -> None:
    put(pipeline, 1)
    await shown(server, 1, "provisional")
    async with socket(server) as client:
        first = await client.subscribe(view="per_minute")
        assert [each["row"]["_state"] for each in first["rows"]] == ["provisional"]
        put(pipeline, 1, "final")
        assert (await client.next())["row"] == {"window": WINDOW, "n": 1, "_state": "final"}
        put(pipeline, 2)
        assert (await client.next())["row"]["_state"] == "corrected"
        put(pipeline, 2, "corrected")  # it was shown as that already
        put(pipeline, 3)
        change = await client.next()
        assert (change["row"]["n"], change["row"]["_state"]) == (3, "corrected")


async def test_filters_can_use_states(
    pipeline: Pipeline, server: Server, http: httpx.AsyncClient
) -> None:
    put(pipeline, 1)
    put(pipeline, 1, "final")
    await shown(server, 1, "final")

    async def rows(**asked: str) -> Any:
        return (await http.get("/v1/views/per_minute", params=asked)).json()["rows"]

    assert await rows(where="_state = 'final'") == [{"window": WINDOW, "n": 1, "_state": "final"}]
    assert await rows(where="_state = 'provisional'") == []
    assert await rows(select="n,_state") == [{"n": 1, "_state": "final"}]
    query = {"sql": "SELECT _state, sum(n) AS n FROM per_minute GROUP BY ALL"}
    assert (await http.post("/v1/query", json=query)).json()["rows"] == [["final", 1]]
    described = (await http.get("/v1/views")).json()["views"]
    columns = {view["name"]: [c["name"] for c in view["columns"]] for view in described}
    assert columns["per_minute"] == ["window", "n", "_state"]
    assert columns["by_city"] == ["city", "n"]
    poll = await http.get("/v1/views/by_city/changes", params={"wait": "0"})
    assert poll.json()["rows"] == []


async def test_every_answer_has_the_watermark(
    pipeline: Pipeline, server: Server, http: httpx.AsyncClient
) -> None:
    put(pipeline, 1)
    await shown(server, 1, "provisional")
    assert (await http.get("/v1/views/per_minute")).json()["watermark"] is None
    report(pipeline, PASSED)
    await until(lambda: server.context.views["per_minute"].watermark == PASSED)
    moment = "2026-11-16T16:42:00.000Z"
    answer = (await http.get("/v1/views/per_minute")).json()
    assert answer["watermark"] == moment
    row = await http.get(f"/v1/views/per_minute/{json.dumps(WINDOW)}")
    assert row.json()["watermark"] == moment
    changes = "/v1/views/per_minute/changes"
    poll = (await http.get(changes)).json()
    assert (poll["watermark"], len(poll["rows"])) == (moment, 1)
    poll = (await http.get(changes, params={"after": poll["position"], "wait": "0"})).json()
    assert poll == {"position": answer["position"], "watermark": moment, "changes": []}
    async with socket(server) as client:
        assert (await client.subscribe(view="per_minute"))["watermark"] == moment
    async with http.stream("GET", changes, headers={"accept": "text/event-stream"}) as events:
        async for line in events.aiter_lines():
            if line.startswith("data:"):
                assert json.loads(line.removeprefix("data:"))["watermark"] == moment
                break
    async with Client(server.url) as client_:
        assert (await client_.snapshot("per_minute")).watermark == moment
        async for message in client_.changes("per_minute"):
            assert getattr(message, "watermark", None) == moment
            break
    system = (await http.get("/v1/system")).json()
    told = {view["name"]: view["watermark"] for view in system["views"]}
    assert told == {"by_city": None, "per_minute": moment, "newest": None}
    assert [stream["watermark"] for stream in system["streams"]] == [moment]


async def test_rows_of_a_query_that_stopped_are_served_with_a_warning(
    pipeline: Pipeline, server: Server, http: httpx.AsyncClient
) -> None:
    put(pipeline, 1)
    await shown(server, 1, "provisional")
    fine = await http.get("/v1/views/per_minute")
    assert "warning" not in fine.json()
    report(pipeline, PASSED, "failed", "topic t was deleted")
    await until(lambda: server.context.views["per_minute"].warning)
    warning = "the query is failed: topic t was deleted"
    has_it = {"if-none-match": fine.headers["etag"]}
    answer = (await http.get("/v1/views/per_minute", headers=has_it)).json()
    assert (answer["warning"], answer["rows"][0]["n"]) == (warning, 1)
    row = (await http.get(f"/v1/views/per_minute/{json.dumps(WINDOW)}")).json()
    assert (row["warning"], row["row"]["n"]) == (warning, 1)
    views = (await http.get("/v1/views")).json()["views"]
    told = {view["name"]: view["warning"] for view in views}
    assert told == {"by_city": None, "per_minute": warning, "newest": None}
    report(pipeline, PASSED)
    await until(lambda: not server.context.views["per_minute"].warning)
    assert "warning" not in (await http.get("/v1/views/per_minute")).json()


async def test_a_client_that_reconnects_gets_the_same_states_as_others(
    pipeline: Pipeline,
) -> None:
    async with pipeline.server(recent_changes=2) as server:
        async with socket(server) as client:
            place = (await client.subscribe(view="per_minute"))["position"]
        put(pipeline, 1)
        put(pipeline, 1, "final")
        put(pipeline, 2)
        put(pipeline, 2, "corrected")
        put(pipeline, 3)
        for n in (4, 5, 6):
            put(pipeline, n)
        await shown(server, 6, "corrected")
        async with socket(server) as client:
            message = await client.subscribe(view="per_minute", after=place)
            seen = [(message["row"]["n"], message["row"]["_state"])]
            while seen[-1][0] < 6:
                message = await client.next()
                seen.append((message["row"]["n"], message["row"]["_state"]))
    assert seen == [(1, "provisional"), (1, "final"), *((n, "corrected") for n in range(2, 7))]


async def test_filters_can_use_errors_of_estimates(
    pipeline: Pipeline, server: Server, http: httpx.AsyncClient
) -> None:
    columns = [ViewColumn("city", "string"), ViewColumn("n", "bigint")]
    pipeline.describe("by_city", ["city"], columns, weighed=["n"])
    row = {"city": "Bern", "n": 40, "_error": {"n": 11.5}}
    pipeline.put("by_city", ["Bern"], row, 10)
    pipeline.flush()
    view = server.context.views["by_city"]
    await until(lambda: len(view.columns) == 3 and view.table.rows)
    assert (await http.get("/v1/views/by_city")).json()["rows"] == [row]
    selected = await http.get("/v1/views/by_city", params={"select": "n,_error"})
    assert selected.json()["rows"] == [{"n": 40, "_error": {"n": 11.5}}]
    query = {"sql": "SELECT n, _error.n FROM by_city WHERE _error.n > 10"}
    assert (await http.post("/v1/query", json=query)).json()["rows"] == [[40, 11.5]]
