"""Rights and policies: a named query needs its own right, and shows only what its caller sees."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.serve.access.callers import connect, serve
from tests.serve.pipeline import SECONDS, Pipeline
from tests.wait_until import until

from millstream import App
from millstream.log.settings import LogSettings
from millstream.serve.service import Server
from millstream.values.view_description import ViewColumn
from millstream.web.auth.caller import Caller
from millstream.web.auth.rights import EVERYTHING, Rights

ONLY_TOTAL = Rights(["read:query/total"])
CALLERS = {
    "one": Caller("key", "one", ONLY_TOTAL, claims={"prefix": "B"}),
    "twin": Caller("key", "twin", ONLY_TOTAL, claims={"prefix": "B"}),
    "all": Caller("key", "all", EVERYTHING, claims={"prefix": ""}),
}


HIDDEN = "secret_n"


@pytest.fixture
def pipeline(log_settings: LogSettings, app_name: str) -> Pipeline:
    app = App(app_name)
    app.stream("rsvps", schema="id LONG, city STRING")
    counted = "SELECT city, count(*) AS n FROM rsvps GROUP BY city"
    app.view("by_city", key="city", sql=counted, rows="starts_with(city, caller.prefix)")
    listed = "string_agg(city, ' ' ORDER BY city)"
    app.query("total", sql=f"SELECT sum(n)::BIGINT AS n, {listed} AS cities FROM by_city")
    app.query("numbers", sql="SELECT city::INT AS number FROM by_city")
    app.check()
    return Pipeline(app_name, log_settings, app)


async def count(pipeline: Pipeline, server: Server, **counts: int) -> None:
    for city, n in counts.items():
        pipeline.count(city, n)
    pipeline.flush()
    rows = server.context.views["by_city"].table.rows
    await until(lambda: all(rows.get(f'["{c}"]', {}).get("n") == n for c, n in counts.items()))


async def test_the_querys_own_right_is_enough_and_the_policies_of_its_views_apply(
    pipeline: Pipeline,
) -> None:
    async with (
        serve(pipeline, CALLERS) as server,
        httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http,
    ):
        await count(pipeline, server, Bonn=1, Berlin=2, Oslo=30)
        await until(lambda: server.context.queries.served["total"].columns)

        async def get(name: str, path: str) -> httpx.Response:
            return await http.get(path, headers={"authorization": f"Bearer {name}"})

        one, twin, all_ = [await get(name, "/v1/queries/total") for name in CALLERS]
        assert one.json()["rows"] == twin.json()["rows"] == [[3, "Berlin Bonn"]]
        assert all_.json()["rows"] == [[33, "Berlin Bonn Oslo"]]
        assert one.headers["etag"] == twin.headers["etag"] != all_.headers["etag"]
        listed = (await get("one", "/v1/queries")).json()["queries"]
        assert [query["name"] for query in listed] == ["total"]
        for path in ("/v1/queries/numbers", "/v1/queries/numbers/changes", "/v1/views/by_city"):
            assert (await get("one", path)).status_code == 403
        refused = await get("all", "/v1/queries/numbers")
        assert (refused.status_code, "Could not convert" in refused.text) == (400, True)


async def test_a_caller_reads_nothing_that_could_name_a_hidden_column(
    log_settings: LogSettings, app_name: str
) -> None:
    app, hide = App(app_name), {HIDDEN: "caller.prefix = ''"}
    app.stream("rsvps", schema=f"id LONG, city STRING, {HIDDEN} LONG", hide=hide)
    columns = f"city, max({HIDDEN}) AS {HIDDEN}"
    counted = f"SELECT {columns}, count(*) AS n FROM rsvps GROUP BY city"
    app.view("by_city", key="city", sql=counted, hide=hide)
    app.query("whole", sql="SELECT * FROM by_city")
    app.query("secrets", sql=f"SELECT city, {HIDDEN} FROM by_city", key=["city", HIDDEN])
    app.query("wrong", sql=f"SELECT {HIDDEN}.x FROM by_city")
    app.check()
    pipeline = Pipeline(app_name, log_settings, app)
    described = {"city": "string", HIDDEN: "bigint", "n": "bigint"}
    pipeline.describe("by_city", ["city"], [ViewColumn(*each) for each in described.items()])
    pipeline.flush()
    callers = {
        "some": Caller("key", "some", EVERYTHING, claims={"prefix": "B"}),
        "no_right": Caller("key", "no_right", Rights([]), claims={"prefix": ""}),
        "all": CALLERS["all"],
    }
    async with (
        serve(pipeline, callers) as server,
        httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http,
    ):
        pipeline.put("by_city", ["Bonn"], {"city": "Bonn", HIDDEN: 9, "n": 1}, 1)
        pipeline.flush()
        await until(lambda: server.context.views["by_city"].table.rows)
        queries = server.context.queries.served
        await until(lambda: queries["whole"].columns and queries["wrong"].error)

        async def get(name: str, path: str) -> httpx.Response:
            answer = await http.get(path, headers={"authorization": f"Bearer {name}"})
            assert name != "some" or HIDDEN not in answer.text, (path, answer.text)
            return answer

        async def x_columns(name: str) -> Any:
            paths = (await get(name, "/v1/openapi.json")).json()["paths"]
            return paths["/v1/queries/whole"]["get"]["responses"]["200"].get("x-columns")

        for path in ("", "/whole", "/secrets", "/secrets/changes?wait=5", "/wrong"):
            await get("some", f"/v1/queries{path}")
        whole = (await get("some", "/v1/queries")).json()["queries"][0]
        assert (whole["sql"], whole["key"], whole["columns"]) == (None, None, None)
        answer = (await get("some", "/v1/queries/whole")).json()
        assert [each["name"] for each in answer["columns"]] == ["city", "n"]
        assert await x_columns("some") is None
        shown = (await get("all", "/v1/queries")).json()["queries"]
        names = [[each["name"] for each in query["columns"]] for query in shown]
        assert names == [["city", HIDDEN, "n"], ["city", HIDDEN], []]
        assert await x_columns("all") == shown[0]["columns"]
        assert await x_columns("no_right") is None
        assert (await get("all", "/v1/queries/secrets")).json()["rows"] == [["Bonn", 9]]
        async with connect(server, callers["some"]) as client:
            error = await client.subscribe(query="secrets")
            assert (error["final"], HIDDEN in str(error)) == (True, False)


async def test_live_queries_are_shared_only_by_callers_that_see_the_same(
    pipeline: Pipeline,
) -> None:
    async with serve(pipeline, CALLERS) as server:
        await count(pipeline, server, Bonn=1, Oslo=30)
        async with (
            connect(server, CALLERS["one"]) as one,
            connect(server, CALLERS["twin"]) as twin,
            connect(server, CALLERS["all"]) as all_,
        ):
            seen: list[dict[str, Any]] = []
            for client in (one, twin, all_):
                snapshot = await client.subscribe(query="total")
                seen.append(snapshot["rows"][0]["row"])
            assert seen == [
                {"n": 1, "cities": "Bonn"},
                {"n": 1, "cities": "Bonn"},
                {"n": 31, "cities": "Bonn Oslo"},
            ]
            assert len(server.context.live) == 2
            await count(pipeline, server, Oslo=31)
            deleted, added = await all_.next(), await all_.next()
            assert (deleted["op"], added["row"]["n"]) == ("delete", 32)
            await one.send(type="ping")
            assert (await one.next())["type"] == "pong"  # nothing came before it
            gap = await one.subscribe(query="total", after=added["position"])
            assert gap["type"] == "gap"
            assert (await one.next())["rows"][0]["row"] == {"n": 1, "cities": "Bonn"}
            own = await one.subscribe(id="b", sql="SELECT * FROM by_city")
            assert (own["type"], own["final"]) == ("error", True)
            assert "there is no view 'by_city'" in own["detail"]
            await count(pipeline, server, Bonn=2)
            changes = [await twin.next(), await twin.next()]
            assert changes[1]["row"] == {"n": 2, "cities": "Bonn"}
