"""A policy for a caller: what it sees, when nobody sees anything, and what is shared."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.serve.access.callers import caller, connect, serve
from tests.serve.pipeline import SECONDS, Pipeline
from tests.wait_until import until

from millstream import App
from millstream.expression.policy import PolicyCondition
from millstream.log.settings import LogSettings
from millstream.pipeline.model import NO_POLICY, Policy
from millstream.serve.access.visibility import SEES_ALL, SEES_NOTHING, AppliedPolicy, Visibility
from millstream.values.view_description import ViewColumn

COLUMNS = (ViewColumn("city", "string"), ViewColumn("n", "bigint"), ViewColumn("card", "string"))
POLICY = Policy(
    PolicyCondition("city = caller.city"), {"card": PolicyCondition("caller.role = 'billing'")}
)


def applied(policy: Policy = POLICY, columns: tuple[ViewColumn, ...] = COLUMNS) -> AppliedPolicy:
    made = AppliedPolicy(policy, "view sales")
    made.fit(columns)
    return made


def test_a_caller_sees_what_its_claims_allow() -> None:
    seen = applied().visibility({"city": "Rome"})
    assert seen == Visibility("\"city\" = 'Rome'", frozenset({"card"}))
    assert applied().visibility({"city": "Rome", "role": "billing"}).hidden == frozenset()
    assert applied().visibility({}).rows == "FALSE"
    assert applied(NO_POLICY).visibility({}) == SEES_ALL


def test_callers_who_see_the_same_share_one_value() -> None:
    policy = applied()
    one = policy.visibility({"city": "Rome", "sub": "ada"})
    assert policy.visibility({"city": "Rome", "sub": "bob"}) is one


def test_before_the_view_is_described_nobody_sees_a_row() -> None:
    assert applied(columns=()).visibility({"city": "Rome"}) == SEES_NOTHING


@pytest.mark.parametrize(
    "policy",
    [
        Policy(PolicyCondition("town = caller.city")),
        Policy(PolicyCondition("n = caller.city OR city = 5")),
        Policy(None, {"cart": PolicyCondition("caller.role = 'billing'")}),
    ],
)
def test_a_policy_that_does_not_fit_shows_nobody_a_row(policy: Policy) -> None:
    unfit = applied(policy)
    assert "nobody sees a row of view sales" in unfit.problem
    assert unfit.visibility({"city": "Rome", "role": "billing"}) == SEES_NOTHING


def test_a_claim_that_is_no_json_is_null() -> None:
    assert applied().visibility({"city": object()}).rows == "FALSE"


def declare(name: str, rows: str) -> App:
    app = App(name)
    app.stream("rsvps", schema="id LONG NOT NULL, city STRING", key="id")
    app.view(
        "by_city", key=["city"], sql="SELECT city, count(*) AS n FROM rsvps GROUP BY 1", rows=rows
    )
    return app


@pytest.fixture
def pipeline(log_settings: LogSettings, app_name: str) -> Pipeline:
    return Pipeline(app_name, log_settings, declare(app_name, "n <= caller.level"))


CALLERS = {"low": caller(level=3), "high": caller(level=9)}


async def get(http: httpx.AsyncClient, name: str, path: str, **headers: str) -> Any:
    return await http.get(path, headers={"authorization": f"Bearer {name}", **headers})


async def test_a_row_leaves_sight_with_a_delete_and_comes_back_with_an_upsert(
    pipeline: Pipeline,
) -> None:
    pipeline.count("Rome", 2)
    pipeline.count("Oslo", 8)
    pipeline.flush()
    async with serve(pipeline, CALLERS) as server, connect(server, CALLERS["low"]) as client:
        first = await client.subscribe(view="by_city")
        assert [each["row"]["n"] for each in first["rows"]] == [2]
        assert first["total"] == 1
        pipeline.count("Rome", 5)  # out of sight
        pipeline.count("Oslo", 9)  # never in sight
        pipeline.count("Rome", 6)  # still out of sight
        pipeline.count("Bonn", 1)
        pipeline.flush()
        messages = [await client.next() for _ in range(2)]
        assert [(m["op"], m["key"], m["row"]) for m in messages] == [
            ("delete", ["Rome"], None),
            ("upsert", ["Bonn"], {"city": "Bonn", "n": 1}),
        ]


async def test_an_etag_of_another_caller_is_none_of_mine(pipeline: Pipeline) -> None:
    pipeline.count("Rome", 2)
    pipeline.flush()
    async with (
        serve(pipeline, CALLERS) as server,
        httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http,
    ):
        low, high = [await get(http, name, "/v1/views/by_city") for name in CALLERS]
        assert low.headers["etag"] != high.headers["etag"]
        assert "authorization" in low.headers["vary"]
        tag = {"if-none-match": low.headers["etag"]}
        assert (await get(http, "low", "/v1/views/by_city", **tag)).status_code == 304
        assert (await get(http, "high", "/v1/views/by_city", **tag)).status_code == 200


async def test_a_hidden_row_is_like_one_that_does_not_exist(pipeline: Pipeline) -> None:
    pipeline.count("Rome", 8)
    pipeline.count("Bonn", 1)
    pipeline.flush()
    async with (
        serve(pipeline, CALLERS) as server,
        httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http,
    ):
        hidden = await get(http, "low", "/v1/views/by_city/Rome")
        missing = await get(http, "low", "/v1/views/by_city/Nice")
        assert hidden.status_code == missing.status_code == 404
        assert hidden.text.replace("Rome", "Nice") == missing.text
        assert (await get(http, "high", "/v1/views/by_city/Rome")).status_code == 200
        listed = (await get(http, "low", "/v1/views")).json()["views"][0]
        assert listed["rows"] is None


async def test_the_log_says_no_more_than_the_row_before_allows(pipeline: Pipeline) -> None:
    """A client resumes before the ring: a delete would show the key of a row that it never had."""
    for n in range(1, 8):
        pipeline.count("Rome", n)
    pipeline.flush()
    async with serve(pipeline, CALLERS, recent_changes=1) as server:
        view = server.context.views["by_city"]
        await until(lambda: view.table.rows and view.metrics.changes.total == 7)
        async with connect(server, CALLERS["low"]) as client:
            message = await client.subscribe(view="by_city", after=f"{view.epoch}:0=4")
            assert message["type"] == "gap"
            assert "may not be yours" in message["reason"]
            assert (await client.next())["rows"] == []
        async with connect(server, CALLERS["high"]) as client:
            message = await client.subscribe(view="by_city", after=f"{view.epoch}:0=4")
            assert (message["type"], message["row"]["n"]) == ("change", 5)


async def test_a_client_that_is_there_before_the_columns_change_sees_no_more_than_before(
    log_settings: LogSettings, app_name: str
) -> None:
    """The rebuilt view lacks the policy's column, which is NULL in its rows."""
    pipeline = Pipeline(app_name, log_settings, declare(app_name, "n IS NULL OR n <= caller.level"))
    pipeline.count("Rome", 2)
    pipeline.flush()
    async with serve(pipeline, CALLERS) as server, connect(server, CALLERS["low"]) as client:
        assert (await client.subscribe(view="by_city"))["total"] == 1
        topic = pipeline.edition("by_city", 2)
        pipeline.put("by_city", ["Rome"], {"city": "Rome", "m": 8}, 8, topic=topic)
        columns = [ViewColumn("city", "string"), ViewColumn("m", "bigint")]
        pipeline.describe("by_city", ["city"], columns, generation="2", topic=topic)
        pipeline.flush()
        assert (await client.next())["type"] == "gap"
        assert (await client.next())["rows"] == []
        assert "there is no column 'n'" in server.context.views["by_city"].policy.problem


async def test_a_view_with_a_policy_is_not_served_before_it_is_described(
    log_settings: LogSettings, app_name: str
) -> None:
    app = declare(app_name, "n <= caller.level")
    app.view("later", key=["city"], sql="SELECT city, n FROM rsvps", rows="city = caller.city")
    pipeline = Pipeline(app_name, log_settings, app)
    async with (
        serve(pipeline, CALLERS) as server,
        httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http,
    ):
        answer = await get(http, "low", "/v1/views/later")
        assert answer.status_code == 503
        assert "is not described yet" in answer.text
        assert (await get(http, "low", "/v1/views")).status_code == 200


async def test_callers_with_the_same_policy_share_one_encoding(pipeline: Pipeline) -> None:
    pipeline.count("Rome", 2)
    pipeline.flush()
    async with serve(pipeline, CALLERS) as server:
        view = server.context.views["by_city"]
        seen = [view.policy.visibility({"level": 3, "sub": name}) for name in ("ada", "bob")]
        encodings = [view.encoding(None, None, False, each) for each in seen]
        assert encodings[0] is encodings[1]


async def test_a_policy_that_does_not_fit_is_reported(
    log_settings: LogSettings, app_name: str
) -> None:
    pipeline = Pipeline(app_name, log_settings, declare(app_name, "city = caller.city"))
    pipeline.describe(
        "by_city", ["city"], [ViewColumn("city", "bigint"), ViewColumn("n", "double")]
    )
    pipeline.count("Rome", 2)
    pipeline.flush()
    who = {"x": caller(city="Rome")}
    async with (
        serve(pipeline, who) as server,
        httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http,
    ):
        assert (await get(http, "x", "/v1/views/by_city")).json()["rows"] == []
        assert not server.context.views["by_city"].policy.problem  # a claim of another type is NULL
    pipeline = Pipeline(app_name, log_settings, declare(app_name, "n > 3"))
    pipeline.describe(
        "by_city", ["city"], [ViewColumn("city", "string"), ViewColumn("n", "double")]
    )
    pipeline.flush()
    async with (
        serve(pipeline, who) as server,
        httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http,
    ):
        answer = (await get(http, "x", "/v1/views/by_city")).json()
        assert answer["rows"] == []
        assert answer["warning"] == "the view has a problem; ask an administrator"
        system = json.dumps(server.context.system.describe()["views"], default=str)
        assert "nobody sees a row of view by_city" in system
