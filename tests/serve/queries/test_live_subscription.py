"""Live queries on every transport, against a real server and Kafka."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from tests.serve.description.test_messages import check
from tests.serve.logins import Keys
from tests.serve.pipeline import SECONDS, Pipeline, Socket, events, following, socket
from tests.wait_until import until

from millstream.cli.group import millstream
from millstream.client import Change, Client, Snapshot
from millstream.serve.description.messages import SENT
from millstream.serve.service import Server

TOP = {"query": "top_cities", "params": {"n": 2}}
OWN = "SELECT city, n FROM by_city ORDER BY n DESC LIMIT 1"


async def count(pipeline: Pipeline, server: Server, **counts: int) -> None:
    for city, n in counts.items():
        pipeline.count(city, n)
    pipeline.flush()
    rows = server.context.views["by_city"].table.rows
    keys = {f'["{city}"]': n for city, n in counts.items()}
    await until(lambda: all(key in rows and rows[key]["n"] == n for key, n in keys.items()))


def row(city: str, n: int) -> dict[str, Any]:
    return {"city": city, "n": n}


async def test_a_websocket_gets_a_snapshot_and_the_changes_of_a_named_query(
    pipeline: Pipeline, server: Server
) -> None:
    await count(pipeline, server, Rome=3, Oslo=2, Bonn=1)
    async with socket(server) as client:
        snapshot = await client.subscribe(**TOP)
        assert (snapshot["query"], snapshot["page"], snapshot["last"]) == ("top_cities", 1, True)
        assert [each["row"] for each in snapshot["rows"]] == [row("Rome", 3), row("Oslo", 2)]
        assert [each["rank"] for each in snapshot["rows"]] == [1, 2]
        await count(pipeline, server, Bonn=9)
        changes = [await client.next() for _ in range(2)]
        for message in (snapshot, *changes):
            check(message, *SENT)
        assert [(c["key"], c["row"], c["more"]) for c in changes] == [
            ([1], row("Bonn", 9), 1),
            ([2], row("Rome", 3), 0),
        ]
        await client.send(type="pause", id="a")
        assert (await client.next())["paused"] is True
        for n in range(10, 15):
            await count(pipeline, server, Bonn=n)
        await client.send(type="resume", id="a")
        assert (await client.next())["paused"] is False
        newest = await client.next()
        while newest["row"] != row("Bonn", 14):
            newest = await client.next()
        for n in range(20, 24):
            await count(pipeline, server, Bonn=n)
            while (await client.next())["row"] != row("Bonn", n):
                pass
        gap = await client.subscribe(**TOP, after=snapshot["position"])
        assert (gap["type"], gap["asked"]) == ("gap", snapshot["position"])
        assert (await client.next())["type"] == "snapshot"


async def test_server_sent_events_resume_with_the_result_that_they_have(
    pipeline: Pipeline, server: Server, http: httpx.AsyncClient
) -> None:
    await count(pipeline, server, Rome=3)
    path = "/v1/queries/top_cities/changes?n=1"
    async with events(http, path) as stream:
        snapshot = await following(stream)
        assert snapshot["rows"] == [{"key": [1], "row": row("Rome", 3), "rank": 1}]
        await count(pipeline, server, Rome=4)
        change = await following(stream)
        assert (change["row"], change["more"]) == (row("Rome", 4), 0)
    async with events(http, path, {"Last-Event-ID": change["position"]}) as stream:
        for n in range(5, 9):
            await count(pipeline, server, Rome=n)
            assert (await following(stream))["row"] == row("Rome", n)
    async with events(http, path, {"Last-Event-ID": change["position"]}) as stream:
        assert (await following(stream))["type"] == "gap"
        assert (await following(stream))["rows"][0]["row"] == row("Rome", 8)


async def test_a_long_poll_waits_for_a_change_of_the_result(
    pipeline: Pipeline, server: Server, http: httpx.AsyncClient
) -> None:
    await count(pipeline, server, Rome=3, Oslo=1)
    path = "/v1/queries/top_cities/changes"
    first = (await http.get(path, params={"n": 1})).json()
    assert [each["row"] for each in first["rows"]] == [row("Rome", 3)]
    nothing = (await http.get(path, params={"n": 1, "after": first["position"], "wait": 0})).json()
    assert (nothing["changes"], nothing["position"]) == ([], first["position"])
    waiting = asyncio.create_task(http.get(path, params={"n": 1, "after": first["position"]}))
    await count(pipeline, server, Oslo=2)  # changes the view, but not the result
    await count(pipeline, server, Oslo=7)
    answer = (await waiting).json()
    for n in range(8, 11):
        assert [(c["op"], c["row"]) for c in answer["changes"]] == [("upsert", row("Oslo", n - 1))]
        await count(pipeline, server, Oslo=n)
        given = {"n": 1, "after": answer["position"]}
        answer = (await http.get(path, params=given)).json()
    stale = (await http.get(path, params={"n": 1, "after": first["position"]})).json()
    assert stale["gap"]["asked"] == first["position"]
    assert [each["row"] for each in stale["rows"]] == [row("Oslo", 10)]
    refused = await http.get(path, params={"m": 1})
    assert (refused.status_code, "no parameter 'm'" in refused.text) == (400, True)
    wrong = await http.get("/v1/queries/wrong/changes")
    assert (wrong.status_code, "town" in wrong.text) == (400, True)


async def test_a_revoked_key_ends_every_live_answer_within_a_second(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    keys = Keys(tmp_path)
    reader = keys.create("reader", read=["query/top_cities"])
    path = "/v1/queries/top_cities/changes"
    async with (
        pipeline.server(**keys.settings) as server,
        httpx.AsyncClient(base_url=server.url, timeout=SECONDS, headers=reader) as http,
        socket(server, additional_headers=reader) as client,
        events(http, path) as stream,
    ):
        assert (await client.subscribe(**TOP))["type"] == "snapshot"
        position = (await following(stream))["position"]
        poll = asyncio.create_task(http.get(path, params={"after": position, "wait": 50}))
        live = server.context.logins._logins
        await until(lambda: len(live) == 3)
        began = time.monotonic()
        keys.file.revoke("reader")
        async with asyncio.timeout(SECONDS):
            last = [event async for event in stream][-1]
            assert (await poll).json()["changes"] == []
            await client.connection.wait_closed()
        assert time.monotonic() - began < 1.0
        assert (last["type"], last["code"]) == ("closed", 4503)
        assert client.connection.close_code == 4503
        await until(lambda: len(server.context.live) == 0)


async def test_sql_of_the_client_can_be_followed_within_limits(pipeline: Pipeline) -> None:
    async with pipeline.server(live_sql_per_caller=2) as server:
        await count(pipeline, server, Rome=1)
        async with socket(server) as client:
            snapshot = await client.subscribe(sql=OWN)
            assert (snapshot["query"], snapshot["rows"][0]["row"]) == (None, row("Rome", 1))
            await count(pipeline, server, Oslo=4)
            assert (await client.next())["row"] == row("Oslo", 4)
            assert (await client.subscribe(id="b", sql=OWN))["type"] == "snapshot"
            refused = await client.subscribe(id="c", sql=OWN)
            assert "follows 2 SQL queries of its own already" in refused["detail"]
            assert server.context.live.evaluations == 2
            await client.send(type="unsubscribe", id="b")
            assert (await client.next())["type"] == "unsubscribed"
            error = await client.subscribe(id="c", sql="SELECT x FROM by_city")
            check(error, *SENT)
            assert error["final"] is True
        await until(lambda: not server.context.live.own_sql)


@pytest.mark.parametrize(
    ("request_", "detail"),
    [
        ({"query": "top_city"}, "there is no query 'top_city'; did you mean 'top_cities'?"),
        ({"query": "top_cities", "params": {"m": 1}}, "has no parameter 'm'"),
        ({"query": "top_cities", "params": {"n": 1.5}}, "parameter n is '1.5'"),
        ({"query": "top_cities", "where": "n > 1"}, "has no where; write it into the query"),
        ({"query": "top_cities", "when_slow": "disconnect"}, "has no when_slow='disconnect'"),
        ({"query": "top_cities", "view": "by_city"}, "names either a view"),
        ({"view": "by_city", "params": {}}, "params are for a named query"),
        ({"sql": "DROP TABLE by_city"}, "only SELECT is answered"),
        ({"sql": "SELECT * FROM read_csv('/etc/passwd')"}, "cannot read from read_csv()"),
        ({"sql": "SELECT $n FROM by_city"}, "there are no parameters"),
    ],
)
async def test_a_wrong_subscription_is_answered_with_what_to_do(
    server: Server, request_: dict[str, Any], detail: str
) -> None:
    async with socket(server) as client:
        error = await client.subscribe(**request_)
        assert error["type"] == "error"
        assert detail in error["detail"]


async def apply(client: Socket, rows: dict[str, Any], expected: list[Any]) -> None:
    """Read changes until the rows, by rank, are the expected ones."""
    while [rows[key] for key in sorted(rows)] != expected:
        message = await client.next()
        assert message["type"] == "change"
        key = str(message["key"][0])
        if message["op"] == "delete":
            del rows[key]
        else:
            rows[key] = message["row"]


async def test_many_clients_hold_the_newest_result_although_the_sql_process_is_killed(
    pipeline: Pipeline, server: Server
) -> None:
    chance = random.Random(3)
    counts = {f"c{number}": 0 for number in range(8)}
    await count(pipeline, server, **counts)
    async with socket(server) as one, socket(server) as other:
        held = []
        for client in (one, other):
            snapshot = await client.subscribe(query="top_cities", params={"n": 5})
            held.append({str(each["key"][0]): each["row"] for each in snapshot["rows"]})
        for number in range(6):
            counts[chance.choice(list(counts))] += chance.randint(1, 5)
            if number == 2:
                os.kill(server.context.sql.pid or 0, signal.SIGKILL)
            await count(pipeline, server, **counts)
            order = sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:5]
            for client, rows in zip((one, other), held, strict=True):
                await apply(client, rows, [row(*each) for each in order])
        assert len(server.context.live) == 1
        async with httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http:
            text = (await http.get("/metrics")).text
            listed = (await http.get("/v1/connections")).json()["connections"]
        assert "millstream_serve_live_queries 1\n" in text
        assert [each["subscriptions"][0]["name"] for each in listed] == ["top_cities"] * 2
    await until(lambda: len(server.context.live) == 0)


async def test_the_python_client_runs_and_follows_queries(
    pipeline: Pipeline, server: Server
) -> None:
    await count(pipeline, server, Rome=3, Oslo=2)
    async with Client(server.url) as client:
        assert (await client.run("top_cities", n=1)).rows == [["Rome", 3]]
        assert (await client.run("big_cities", low=None, part="m")).rows == [["Rome", 3, 4.5]]
        assert "top_cities" in [query["name"] for query in await client.queries()]
        async with client.changes(query="top_cities", params={"n": 1}) as changes:
            first = await anext(changes)
            assert isinstance(first, Snapshot)
            assert (first.rows[0].row, first.rows[0].rank) == (row("Rome", 3), 1)
            await count(pipeline, server, Oslo=9)
            second = await anext(changes)
            assert isinstance(second, Change)
            assert (second.row, second.rank, second.more) == (row("Oslo", 9), 1, 0)
        async with client.changes(sql=OWN) as changes:
            own = await anext(changes)
            assert isinstance(own, Snapshot)
            assert own.rows[0].row == row("Oslo", 9)
        with pytest.raises(TypeError, match="changes\\(query='top_cities'"):
            client.changes("by_city", query="top_cities")


async def test_commands_run_and_follow_queries(pipeline: Pipeline, server: Server) -> None:
    await count(pipeline, server, Rome=3, Oslo=2)

    async def run(*arguments: str) -> list[dict[str, Any]]:
        result = await asyncio.to_thread(
            CliRunner().invoke, millstream, [*arguments, "--json", "--url", server.url]
        )
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.output.splitlines()]

    assert await run("query", "top_cities", "-p", "n=1") == [row("Rome", 3)]
    (line,) = await run("tail", "top_cities", "-p", "n=1", "-n", "1")
    assert (line["row"], line["key"]) == (row("Rome", 3), [1])
    (own,) = await run("tail", OWN, "-n", "1")
    assert own["row"] == row("Rome", 3)
    wrong = await asyncio.to_thread(
        CliRunner().invoke, millstream, ["query", "SELECT 1", "-p", "n=1"]
    )
    assert (wrong.exit_code, "-p is for a named query" in wrong.output) == (2, True)
