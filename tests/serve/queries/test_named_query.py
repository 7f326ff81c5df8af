"""Named queries over HTTP."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import httpx
from tests.serve.api.test_formats import EVERY, read
from tests.serve.logins import Keys
from tests.serve.pipeline import SECONDS, Pipeline
from tests.wait_until import until

from millstream.serve.service import Server
from millstream.values.view_description import ViewColumn

CITIES = ["Berlin", "Bonn", "Oslo", "Rome", "Paris", "' OR 1=1 --"]


async def described(http: httpx.AsyncClient) -> dict[str, Any]:
    """The queries by name, once DuckDB has checked them."""
    found: dict[str, Any] = {}

    async def checked() -> bool:
        listed = (await http.get("/v1/queries")).json()["queries"]
        found.update({query["name"]: query for query in listed})
        return all(query["columns"] or query["error"] for query in listed)

    await until(checked)
    return found


async def rows(http: httpx.AsyncClient, name: str, **values: Any) -> list[list[Any]]:
    response = await http.get(f"/v1/queries/{name}", params=values)
    assert response.status_code == 200, response.text
    found: list[list[Any]] = response.json()["rows"]
    return found


async def put(pipeline: Pipeline, server: Server, counts: dict[str, int]) -> None:
    for city, n in counts.items():
        pipeline.count(city, n)
    pipeline.flush()
    table = server.context.views["by_city"].table
    await until(lambda: {row["city"]: row["n"] for row in table.rows.values()} == counts)


async def test_answers_are_those_of_plain_python(
    pipeline: Pipeline, server: Server, http: httpx.AsyncClient
) -> None:
    chance = random.Random(5)
    counts: dict[str, int] = {}
    for _ in range(5):
        counts = {city: max(counts.get(city, 0), chance.randint(1, 99)) for city in CITIES}
        await put(pipeline, server, counts)
        n, low, part = chance.randint(0, 7), chance.randint(0, 99), chance.choice(["o", "'", "%"])
        order = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
        assert await rows(http, "top_cities", n=n) == [list(each) for each in order[:n]]
        assert await rows(http, "top_cities") == [list(each) for each in order[:3]]
        found = await rows(http, "big_cities", low=low, factor=2, part=part)
        expected = [[c, k, k * 2.0] for c, k in counts.items() if k >= low and part in c]
        assert sorted(found) == sorted(expected)


async def test_an_answer_is_not_computed_again_for_a_client_that_has_it(
    pipeline: Pipeline, server: Server, http: httpx.AsyncClient
) -> None:
    await described(http)
    await put(pipeline, server, {"Oslo": 1, "Rome": 2})
    first = await http.get("/v1/queries/top_cities?n=2")
    tag = {"If-None-Match": first.headers["etag"]}
    pid = server.context.sql.pid
    same = await http.get("/v1/queries/top_cities?n=2", headers=tag)
    assert (same.status_code, same.content) == (304, b"")
    assert (await http.get("/v1/queries/top_cities?n=1", headers=tag)).status_code == 200
    assert (await http.get("/v1/queries/big_cities", headers=tag)).status_code == 200
    await put(pipeline, server, {"Oslo": 5, "Rome": 2})
    changed = await http.get("/v1/queries/top_cities?n=2", headers=tag)
    assert changed.json()["rows"] == [["Oslo", 5], ["Rome", 2]]
    assert changed.headers["etag"] != first.headers["etag"]
    assert server.context.sql.pid == pid
    # What depends on the time has no tag: it changes without any view.
    assert "etag" not in (await http.get("/v1/queries/now_or_never")).headers


async def test_answers_have_the_format_that_the_client_accepts(pipeline: Pipeline) -> None:
    path = "/v1/queries/top_cities?n=3"
    async with (
        pipeline.server(query_rows=2) as server,
        httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http,
    ):
        await described(http)
        await put(pipeline, server, {"Oslo": 1, "Rome": 2, "Bonn": 3})
        tags = set()
        for media in EVERY:
            answer = await http.get(path, headers={"Accept": media})
            assert answer.headers["content-type"].startswith(media)
            found = [list(row.values()) if isinstance(row, dict) else row for row in read(answer)]
            assert [[city, int(n)] for city, n in found] == [["Bonn", 3], ["Rome", 2]]
            assert answer.headers["millstream-truncated"] == "true"
            assert "serve.query_rows" in answer.headers["millstream-rest"]
            assert answer.headers["vary"] == "accept, authorization"
            tag = {"If-None-Match": answer.headers["etag"]}
            same = [await http.get(path, headers={"Accept": each, **tag}) for each in EVERY]
            assert [each for each, got in zip(EVERY, same, strict=True) if not got.content] == [
                media
            ]
            tags.add(answer.headers["etag"])
        assert len(tags) == len(EVERY)
        whole = await http.get("/v1/queries/top_cities?n=1", headers={"Accept": "text/csv"})
        assert whole.text == "city,n\r\nBonn,3\r\n"
        assert "millstream-truncated" not in whole.headers
        refused = await http.get(path, headers={"Accept": "image/png"})
        assert (refused.status_code, refused.json()["available"]) == (406, EVERY)


async def test_the_time_of_a_query_is_counted_for_its_caller(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    keys = Keys(tmp_path)
    caller, other = (keys.create(name, read=["query/*"]) for name in ("caller", "other"))
    async with (
        pipeline.server(**keys.settings) as server,
        httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http,
    ):
        answer = await http.get("/v1/queries/top_cities", headers=caller)
        assert answer.status_code == 200
        for headers, is_counted in ((caller, True), (other, False)):
            [own] = (await http.get("/v1/usage", headers=headers)).json()["callers"]
            assert (own["query_seconds"] > 0) is is_counted


async def test_queries_are_listed_with_their_parameters_columns_and_errors(
    http: httpx.AsyncClient,
) -> None:
    queries = await described(http)
    assert queries["top_cities"] == {
        "name": "top_cities",
        "description": "The busiest cities",
        "sql": "SELECT city, n FROM by_city ORDER BY n DESC, city LIMIT $n",
        "parameters": [{"name": "n", "type": "integer", "default": 3}],
        "key": None,
        "views": ["by_city"],
        "columns": [{"name": "city", "type": "varchar"}, {"name": "n", "type": "bigint"}],
        "error": None,
    }
    assert "town" in queries["wrong"]["error"]
    system = (await http.get("/v1/system")).json()
    assert {each["name"]: each for each in system["queries"]} == queries
    answer = await http.get("/v1/queries/wrong")
    assert answer.status_code == 400
    assert "town" in answer.json()["detail"]
    openapi = (await http.get("/v1/openapi.json")).json()
    path = openapi["paths"]["/v1/queries/top_cities"]["get"]
    assert path["summary"] == "The busiest cities"
    assert path["parameters"][0]["schema"] == {"type": "integer", "default": 3}
    assert path["responses"]["200"]["x-columns"] == queries["top_cities"]["columns"]


async def test_a_wrong_call_is_answered_with_what_to_do(http: httpx.AsyncClient) -> None:
    for path, status, detail in [
        ("/v1/queries/top_city", 404, "there is no query 'top_city'; did you mean 'top_cities'?"),
        ("/v1/queries/top_cities?m=1", 400, "query top_cities has no parameter 'm'; write 'n'"),
        ("/v1/queries/top_cities?n=x", 400, "parameter n is 'x'; write a whole number"),
        ("/v1/queries?x=1", 400, "there is no parameter 'x'"),
        ("/v1/queries/top_cities?n=-1", 400, "LIMIT"),
    ]:
        answer = await http.get(path)
        assert (answer.status_code, detail in answer.json()["detail"]) == (status, True), (
            answer.text
        )


async def test_a_query_over_a_rebuilt_view_is_checked_again(
    pipeline: Pipeline, server: Server, http: httpx.AsyncClient
) -> None:
    assert "town" in (await described(http))["wrong"]["error"]
    pipeline.describe(
        "by_city", ["city"], [ViewColumn("city", "string"), ViewColumn("town", "int")]
    )
    pipeline.flush()

    async def corrected() -> bool:
        queries = await described(http)
        return queries["wrong"]["error"] is None and queries["top_cities"]["error"] is not None

    await until(corrected)
