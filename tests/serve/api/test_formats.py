"""Rows in the format that the client accepts."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import httpx
import pyarrow as pa
import pytest
from tests.serve.pipeline import Pipeline
from tests.wait_until import until

from millstream.serve.api.formats import (
    ArrowFormat,
    CsvFormat,
    JsonFormat,
    LinesFormat,
    choose_format,
)
from millstream.serve.service import Server
from millstream.web.problem import Problem

ARROW = "application/vnd.apache.arrow.stream"
EVERY = ["application/json", "application/x-ndjson", "text/csv", ARROW]
CITIES = ["Köln", 'a "quoted", city', "two\nlines"]


def read(response: httpx.Response) -> list[dict[str, Any]]:
    """The rows of an answer, by its type; values of CSV are text."""
    match response.headers["content-type"].partition(";")[0]:
        case "application/json":
            found: list[dict[str, Any]] = response.json()["rows"]
            return found
        case "application/x-ndjson":
            return [json.loads(line) for line in response.text.splitlines()]
        case "text/csv":
            return list(csv.DictReader(io.StringIO(response.text, newline="")))
        case _:
            rows: list[dict[str, Any]] = pa.ipc.open_stream(response.content).read_all().to_pylist()
            return rows


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", JsonFormat),
        ("*/*", JsonFormat),
        ("application/*", JsonFormat),
        ("text/html,application/xhtml+xml;q=0.9,*/*;q=0.8", JsonFormat),
        ("text/*", CsvFormat),
        ("text/csv;q=0.5, application/x-ndjson", LinesFormat),
        ("application/json;q=0, */*;q=0.1", LinesFormat),
        (f"Text/CSV;q=0.2, {ARROW};q=0.3", ArrowFormat),
    ],
)
def test_the_client_s_preference_decides(accept: str, expected: type) -> None:
    assert choose_format(accept.encode()) is expected


@pytest.mark.parametrize("accept", ["image/png", "application/json;q=0", "text/csv;q=nothing"])
def test_a_format_that_does_not_exist_is_an_error_with_the_list(accept: str) -> None:
    with pytest.raises(Problem) as refused:
        choose_format(accept.encode())
    assert refused.value.status == 406
    assert refused.value.content["available"] == EVERY


@pytest.mark.parametrize("accept", EVERY)
async def test_a_view_has_the_same_rows_in_every_format(
    pipeline: Pipeline, server: Server, http: httpx.AsyncClient, accept: str
) -> None:
    for number, city in enumerate(CITIES):
        pipeline.count(city, number)
    await until(lambda: len(server.context.views["by_city"].table) == 3)
    answer = await http.get("/v1/views/by_city", headers={"Accept": accept})
    assert answer.headers["content-type"].startswith(accept)
    assert "millstream-truncated" not in answer.headers
    kind = str if accept == "text/csv" else int
    expected = {city: number for number, city in enumerate(CITIES)}
    assert {row["city"]: int(row["n"]) for row in read(answer)} == expected
    assert all(isinstance(row["n"], kind) for row in read(answer))
    refused = await http.get("/v1/views/by_city", headers={"Accept": "image/png"})
    assert (refused.status_code, refused.json()["available"]) == (406, EVERY)


@pytest.mark.parametrize("accept", EVERY)
async def test_an_answer_that_lacks_rows_says_so_and_how_to_get_them(
    pipeline: Pipeline, server: Server, http: httpx.AsyncClient, accept: str
) -> None:
    for number in range(700):
        pipeline.append(number)
    await until(lambda: len(server.context.views["newest"].table) == 700)
    answer = await http.get("/v1/views/newest", headers={"Accept": accept})
    assert len(read(answer)) == 100
    assert answer.headers["millstream-truncated"] == "true"
    assert "limit=700" in answer.headers["millstream-rest"]
    if accept == "application/json":
        assert (answer.json()["total"], answer.json()["truncated"]) == (700, True)
        assert "limit=700" in answer.json()["hint"]
    whole = await http.get("/v1/views/newest?limit=700", headers={"Accept": accept})
    assert [int(row["id"]) for row in read(whole)] == list(range(700))
    assert "millstream-truncated" not in whole.headers
    head = await http.head("/v1/views/newest?limit=700", headers={"Accept": accept})
    assert (head.status_code, head.content) == (200, b"")


SQL = """
SELECT 1 AS n, 'ä' AS s, 1.50::DECIMAL(10, 2) AS d, 0.1::DOUBLE AS x, true AS b, NULL AS nothing,
  TIMESTAMP '2026-01-31 12:00:00' AS t, DATE '2026-01-31' AS day, {'a': [1]} AS nested, 2 AS n
FROM range(3)
"""


@pytest.mark.parametrize("accept", EVERY[1:])
async def test_an_answer_to_sql_has_every_format(http: httpx.AsyncClient, accept: str) -> None:
    query = {"sql": SQL, "limit": 2}
    answer = await http.post("/v1/query", json=query, headers={"Accept": accept})
    assert answer.headers["millstream-truncated"] == "true"
    row, _ = read(answer)
    assert list(row) == ["n", "s", "d", "x", "b", "nothing", "t", "day", "nested", "n_1"]
    if accept == ARROW:
        assert row["t"].astimezone(UTC) == datetime(2026, 1, 31, 12, tzinfo=UTC)
        assert (row["d"], row["day"]) == (Decimal("1.50"), date(2026, 1, 31))
        assert (row["n"], row["x"], row["b"], row["n_1"]) == (1, 0.1, True, 2)
    elif accept == "text/csv":
        assert (row["b"], row["nothing"], row["nested"]) == ("true", "", '{"a":[1]}')
    else:
        assert (row["x"], row["nested"], row["nothing"]) == (0.1, {"a": [1]}, None)
    refused = await http.post("/v1/query", json=query, headers={"Accept": "image/png"})
    assert refused.status_code == 406


async def test_an_etag_holds_for_its_own_format_only(http: httpx.AsyncClient) -> None:
    tags = {}
    for accept in EVERY[1:]:
        answer = await http.get("/v1/views/by_city", headers={"Accept": accept})
        tags[accept] = answer.headers["etag"]
        again = {"Accept": accept, "If-None-Match": tags[accept]}
        assert (await http.get("/v1/views/by_city", headers=again)).status_code == 304
    assert len(set(tags.values())) == len(tags)
