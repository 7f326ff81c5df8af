"""Snapshots, rows, queries and descriptions over HTTP."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
from confluent_kafka import Producer
from tests.serve.pipeline import Pipeline
from tests.wait_until import until

from millstream.log.topic_names import audit_topic, stream_topic
from millstream.serve.service import Server
from millstream.values.report import Latency, ProcessReport, StreamCounts, ViewCounts

WINDOW = {"start": "2026-11-16T16:41:00.000000Z", "end": "2026-11-16T16:42:00.000000Z"}


@pytest.fixture
async def filled(pipeline: Pipeline, server: Server) -> None:
    for city, n in (("Rome", 3), ("Oslo", 5), ("Bern", 1)):
        pipeline.count(city, n)
    pipeline.put("per_minute", [WINDOW], {"window": WINDOW, "n": 9}, 9)
    for number in range(5):
        pipeline.append(number)
    pipeline.flush()
    views = server.context.views
    await until(
        lambda: (
            [len(views[name].table) for name in ("by_city", "per_minute", "newest")] == [3, 1, 5]
        )
    )


@pytest.mark.usefixtures("filled")
class TestViews:
    async def test_a_views_rows_come_by_key(self, http: httpx.AsyncClient) -> None:
        answer = (await http.get("/v1/views/by_city")).json()
        assert answer["view"] == "by_city"
        assert answer["rows"] == [
            {"city": "Bern", "n": 1},
            {"city": "Oslo", "n": 5},
            {"city": "Rome", "n": 3},
        ]

    async def test_rows_are_filtered_selected_ordered_and_counted(
        self, http: httpx.AsyncClient
    ) -> None:
        asked = {"where": "n > 1", "select": "city", "order": "n DESC", "limit": "1"}
        answer = await http.get("/v1/views/by_city", params=asked)
        assert answer.json()["rows"] == [{"city": "Oslo"}]

    async def test_a_view_without_key_gives_its_newest_rows(self, http: httpx.AsyncClient) -> None:
        answer = await http.get("/v1/views/newest", params={"limit": "2", "select": "id"})
        assert answer.json()["rows"] == [{"id": 3}, {"id": 4}]

    async def test_rows_that_the_client_has_are_not_sent_again(
        self, http: httpx.AsyncClient, pipeline: Pipeline, server: Server
    ) -> None:
        first = await http.get("/v1/views/by_city")
        tag = first.headers["etag"]
        assert tag == f'"{first.json()["position"]}"'
        again = await http.get("/v1/views/by_city", headers={"If-None-Match": tag})
        assert (again.status_code, again.content) == (304, b"")
        pipeline.count("Rome", 4)
        await until(lambda: server.context.views["by_city"].table.rows['["Rome"]']["n"] == 4)
        newer = await http.get("/v1/views/by_city", headers={"If-None-Match": tag})
        assert newer.status_code == 200

    @pytest.mark.parametrize("key", ["Oslo", '["Oslo"]', '"Oslo"', '[ "Oslo" ]'])
    async def test_a_row_is_found_by_its_key(self, http: httpx.AsyncClient, key: str) -> None:
        answer = await http.get(f"/v1/views/by_city/{quote(key, safe='')}")
        assert answer.json()["row"] == {"city": "Oslo", "n": 5}
        assert answer.json()["key"] == ["Oslo"]

    async def test_a_window_can_be_a_key(self, http: httpx.AsyncClient) -> None:
        key = quote(json.dumps([WINDOW]), safe="")
        assert (await http.get(f"/v1/views/per_minute/{key}")).json()["row"]["n"] == 9

    @pytest.mark.parametrize(
        ("path", "status", "complaint"),
        [
            ("/v1/views/by_citi", 404, "did you mean 'by_city'"),
            ("/v1/views/by_city/Osl", 404, "did you mean 'Oslo'"),
            ("/v1/views/newest/1", 404, "has no key"),
            ("/v1/views/by_city?where=m%3D1", 400, "there is no column 'm'"),
            ("/v1/views/by_city?where=", 200, ""),
            ("/v1/views/by_city?order=m", 400, "there is no column 'm'"),
            ("/v1/views/by_city?select=m", 400, "there is no column 'm'"),
            ("/v1/views/by_city?limit=many", 400, "limit"),
            ("/v1/views/by_city?limit=-1", 400, "limit"),
            ("/v1/views/by_city?wher=n", 400, "did you mean 'where'"),
            ("/v1/views/by_city?where=%ff", 400, "UTF-8"),
            ("/v1/views/by_city/changes?after=x", 400, "position"),
            ("/v1/views/by_city/changes?wait=1000", 400, "wait"),
            ("/v1/streams/rsvp/events", 404, "did you mean 'rsvps'"),
            ("/v1/nothing", 404, "nothing at /v1/nothing"),
            ("/nothing.js", 404, "nothing at"),
        ],
    )
    async def test_errors_say_what_is_wrong(
        self, http: httpx.AsyncClient, path: str, status: int, complaint: str
    ) -> None:
        answer = await http.get(path)
        assert answer.status_code == status
        if status != 200:
            assert answer.headers["content-type"] == "application/problem+json"
            assert complaint in answer.json()["detail"]
            assert answer.json()["status"] == status

    async def test_the_error_for_a_wrong_method_lists_the_right_ones(
        self, http: httpx.AsyncClient
    ) -> None:
        answer = await http.post("/v1/views/by_city")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
        assert (await http.get("/v1/query")).headers["allow"] == "POST"
        assert (await http.head("/v1/views/by_city")).status_code == 200
        assert (await http.get("/v1/connect")).status_code == 426

    async def test_sql_is_answered_with_types(self, http: httpx.AsyncClient) -> None:
        sql = "SELECT b.city, b.n FROM by_city b, newest"
        answer = await http.post("/v1/query", json={"sql": sql, "limit": 2})
        assert answer.json()["columns"] == [
            {"name": "city", "type": "varchar"},
            {"name": "n", "type": "bigint"},
        ]
        assert answer.json()["truncated"] is True
        wrong = await http.post("/v1/query", json={"sql": "SELECT * FROM '/etc/passwd'"})
        assert (wrong.status_code, "passwd" in wrong.json()["detail"]) == (400, True)
        unreadable = (b'{"sql":"\xff"}', b'{"sql":' + b"[" * 50_000)
        for body in (b"{", b"{}", b'{"sql":1}', b'{"sql":"SELECT 1","x":1}', *unreadable):
            json_ = {"Content-Type": "application/json"}
            answer = await http.post("/v1/query", content=body, headers=json_)
            assert answer.status_code == 400
        too_long = await http.post("/v1/query", json={"sql": "x" * 200_000})
        assert too_long.status_code == 413

    async def test_a_page_of_another_origin_cannot_query(
        self, http: httpx.AsyncClient, server: Server
    ) -> None:
        body = b'{"sql": "SELECT 1"}'
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
            headers = {"Content-Type": kind}
            answer = await http.post("/v1/query", content=body, headers=headers)
            assert (answer.status_code, "application/json" in answer.text) == (415, True)
            headers["Origin"] = "https://evil.example"
            answer = await http.post("/v1/query", content=body, headers=headers)
            assert answer.status_code == 403
        for origin, status in (("https://evil.example", 403), ("null", 403), (server.url, 200)):
            headers = {"Content-Type": "application/json; charset=utf-8", "Origin": origin}
            answer = await http.post("/v1/query", content=body, headers=headers)
            assert answer.status_code == status, origin
        assert (await http.post("/v1/query", content=body)).status_code == 415

    async def test_rows_that_are_left_out_are_counted(
        self, http: httpx.AsyncClient, pipeline: Pipeline, server: Server
    ) -> None:
        for number in range(5, 130):
            pipeline.append(number)
        pipeline.flush()
        await until(lambda: len(server.context.views["newest"].table) == 130)
        answer = (await http.get("/v1/views/newest")).json()
        assert (len(answer["rows"]), answer["total"], answer["truncated"]) == (100, 130, True)
        answer = (await http.get("/v1/views/newest?limit=1000")).json()
        assert (len(answer["rows"]), answer["total"], answer["truncated"]) == (130, 130, False)
        answer = (await http.get("/v1/views/by_city?where=n>1&limit=1")).json()
        assert (len(answer["rows"]), answer["total"], answer["truncated"]) == (1, 2, True)
        answer = (await http.get("/v1/views/by_city")).json()
        assert (answer["total"], answer["truncated"]) == (3, False)

    async def test_a_missing_row_says_what_a_key_looks_like(self, http: httpx.AsyncClient) -> None:
        deep = await http.get("/v1/views/by_city/" + "[" * 5_000)
        assert deep.status_code == 404
        detail = (await http.get("/v1/views/by_city/123456")).json()["detail"]
        assert "the key is city: write its value, or a JSON array as in [" in detail
        detail = (await http.get("/v1/views/per_minute/x")).json()["detail"]
        assert "the key is window" in detail
        assert json.dumps([WINDOW], separators=(",", ":")) in detail
        shown = detail.rsplit(" ", 1)[1]
        assert (await http.get(f"/v1/views/per_minute/{shown}")).json()["row"]["n"] == 9

    async def test_the_api_describes_itself(self, http: httpx.AsyncClient) -> None:
        document = (await http.get("/v1/openapi.json")).json()
        assert "/v1/views/by_city/{key}" in document["paths"]
        assert "/v1/streams/rsvps/events" in document["paths"]
        assert (await http.get("/v1/views")).json()["views"][0]["rows"] == 3
        text = (await http.get("/metrics")).text
        assert 'millstream_view_rows{view="by_city"} 3' in text


async def test_the_system_is_described_by_its_processes_reports(
    http: httpx.AsyncClient, pipeline: Pipeline, server: Server
) -> None:
    now = 2 * 10**12  # of the future, so that it is fresh whatever the clock says
    latency = Latency(p50=1.0, p99=2.0, max=3.0, count=10)
    counts = StreamCounts(
        accepted=10, logged=9, rejected=1, pending=1, rate=4.5, latency_ms=latency
    )
    reports = [
        ProcessReport("collect", "c1", now, now, streams={"rsvps": counts}),
        ProcessReport("collect", "c2", now, now, streams={"rsvps": counts}),
        ProcessReport("analyze", "a1", now, now, views={"by_city": ViewCounts(state="running")}),
        ProcessReport("collect", "dead", 1, 1, streams={"rsvps": counts}),
    ]
    producer = Producer({"bootstrap.servers": pipeline.log.bootstrap})
    for report in reports:
        producer.produce(audit_topic(pipeline.app.name), msgspec.json.encode(report))
    producer.produce(audit_topic(pipeline.app.name), b"of another version")
    producer.flush(10)

    async def reported() -> dict[str, Any] | None:
        system: dict[str, Any] = (await http.get("/v1/system")).json()
        tiers = system["tiers"]
        return system if tiers["analyze"]["state"] != "down" and tiers["serve"]["views"] else None

    system = await until(reported)
    collect = system["tiers"]["collect"]
    assert (collect["state"], collect["instances"], collect["accepted"]) == ("up", 2, 20)
    assert (collect["rate"], collect["latency_ms"]["p99"]) == (9.0, 2.0)
    assert collect["streams"]["rsvps"]["logged"] == 18
    assert system["tiers"]["analyze"]["views"]["by_city"]["state"] == "running"
    assert system["tiers"]["log"]["state"] == "up"
    assert system["streams"][0]["columns"][0] == {"name": "id", "type": "bigint"}
    assert [view["name"] for view in system["views"]] == ["by_city", "per_minute", "newest"]
    assert system["views"][1]["window"] == "window"


async def test_the_system_shows_the_read_positions_of_rows(
    http: httpx.AsyncClient, pipeline: Pipeline
) -> None:
    before = round(time.time() * 1000) - 1_000
    pipeline.append(7, offset=41)
    pipeline.append(8, offset=44)
    pipeline.append(8, offset=44)
    pipeline.flush()

    async def reported() -> dict[str, Any] | None:
        views = (await http.get("/v1/system")).json()["tiers"]["serve"]["views"]
        newest: dict[str, Any] = views.get("newest", {})
        return newest if "read" in newest else None

    read = await until(reported)
    assert read["read"] == {stream_topic(pipeline.app.name, "rsvps"): {"0": 45}}
    assert read["newest_received_at"] >= before


async def test_latencies_are_measured_from_the_records_times(
    http: httpx.AsyncClient, pipeline: Pipeline, server: Server
) -> None:
    pipeline.count("Rome", 1)
    await until(lambda: server.context.views["by_city"].metrics.end_to_end.summary())
    metrics = server.context.views["by_city"].metrics
    served, whole = metrics.serve.summary(), metrics.end_to_end.summary()
    assert served is not None
    assert whole is not None
    assert 0 <= served.max < 20_000
    assert whole.max >= served.max
    assert (await http.get("/v1/system")).json()["end_to_end_ms"]["count"] == 1


async def test_a_server_that_is_still_reading_the_log_refuses_requests(
    http: httpx.AsyncClient, server: Server
) -> None:
    server.context.ready = False
    assert (await http.get("/health/live")).status_code == 200
    for path in ("/health/ready", "/v1/views/by_city", "/v1/views/by_city/changes"):
        answer = await http.get(path)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize(
    ("method", "path", "content"),
    [
        ("POST", "/v1/groups/desk/reset", '{"to":"start"}'),
        ("DELETE", "/v1/groups/desk", ""),
        ("DELETE", "/v1/connections/a-1", ""),
        ("POST", "/v1/tickets", ""),
        ("POST", "/v1/query", '{"sql":"SELECT 1"}'),
    ],
)
async def test_a_page_of_another_origin_can_change_nothing(
    http: httpx.AsyncClient, method: str, path: str, content: str
) -> None:
    headers = {"Origin": "http://evil.example", "Content-Type": "application/json"}
    refused = await http.request(method, path, content=content, headers=headers)
    assert (refused.status_code, "evil.example" in refused.json()["detail"]) == (403, True)
    own = {**headers, "Origin": str(http.base_url).rstrip("/")}
    answer = await http.request(method, path, content=content, headers=own)
    assert answer.status_code != 403


@pytest.mark.parametrize("body", [b"[" * 5_000, b'{"to":"\xff"}', b"{}", b"7"])
async def test_an_unreadable_request_is_refused_with_an_example(
    http: httpx.AsyncClient, body: bytes
) -> None:
    answer = await http.post("/v1/groups/desk/reset", content=body)
    assert answer.status_code == 400
    assert "cannot read the request" in answer.json()["detail"]
