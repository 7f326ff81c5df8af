"""Live queries: what their clients hold is always the newest result of the same SQL."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from typing import Any

import pytest
from tests.serve.queries.live import Client, Place, place
from tests.wait_until import until

from millstream.web.problem import Problem

TOP = "SELECT city, n FROM cities ORDER BY n DESC, city LIMIT $n"
BIG = "SELECT city, n FROM cities WHERE n > $low"
LETTERS = "SELECT city[1] AS letter, sum(n)::BIGINT AS n FROM cities GROUP BY 1"
JOINED = "SELECT city, cities.n, people.n AS people FROM cities JOIN people USING (city)"
TWICE = "SELECT n FROM cities UNION ALL SELECT n FROM people"


def by_text(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=json.dumps)


@pytest.mark.parametrize("seed", range(3))
async def test_changes_always_lead_to_the_newest_result(seed: int) -> None:
    chance = random.Random(seed)
    names = [f"{letter}{number}" for letter in "abc" for number in range(4)]
    async with place() as here:
        clients: dict[str, tuple[Client, dict[str, Any], bool]] = {
            TOP: (here.follow(TOP, n=5), {"n": 5}, True),
            BIG: (here.follow(BIG, ("city",), low=3), {"low": 3}, False),
            LETTERS: (here.follow(LETTERS), {}, False),
            JOINED: (here.follow(JOINED, ("city",)), {}, False),
            TWICE: (here.follow(TWICE), {}, False),
        }
        keyed = here.follow(TOP, ("city",), n=5)
        for _ in range(12):
            for _ in range(chance.randint(1, 4)):
                rows = {
                    chance.choice(names): chance.choice([None, *range(9)])
                    for _ in range(chance.randint(1, 6))
                }
                here.put(chance.choice(["cities", "people"]), rows)
                await asyncio.sleep(0)
                for client, _, _ in clients.values():
                    client.read(chance.randint(0, 200))  # some are slower than others
            for sql, (client, values, is_ordered) in clients.items():
                expected = await here.answer(sql, **values)
                await client.until_has(expected if is_ordered else by_text(expected))
            await keyed.until_has(await here.answer(TOP, n=5))
        for client, _, _ in clients.values():
            assert [m["type"] for m in client.messages].count("snapshot") == 1


async def test_a_sorted_result_has_ranks_and_each_difference_an_end() -> None:
    async with place() as here:
        here.put("cities", {"Rome": 3, "Oslo": 2, "Bonn": 1})
        client = here.follow(TOP, ("city",), n=2)
        snapshot = await client.next()
        assert (snapshot["total"], snapshot["truncated"], snapshot["query"]) == (2, False, None)
        assert (snapshot["page"], snapshot["last"]) == (1, True)
        assert snapshot["rows"] == [
            {"key": ["Rome"], "row": {"city": "Rome", "n": 3}, "rank": 1},
            {"key": ["Oslo"], "row": {"city": "Oslo", "n": 2}, "rank": 2},
        ]
        here.put("cities", {"Bonn": 9})
        changes = [await client.next() for _ in range(3)]
        assert [(c["op"], c["key"], c.get("rank"), c["more"]) for c in changes] == [
            ("delete", ["Oslo"], None, 2),
            ("upsert", ["Bonn"], 1, 1),
            ("upsert", ["Rome"], 2, 0),
        ]
        positions = {snapshot["position"], *(change["position"] for change in changes)}
        assert len(positions) == 4


async def test_many_subscribers_share_one_evaluation_and_none_costs_nothing() -> None:
    async with place() as here:
        here.put("cities", {"Rome": 1})
        clients = [here.follow(TOP, n=3) for _ in range(50)]
        for client in clients:
            await client.until_has([{"city": "Rome", "n": 1}])
        assert here.live.evaluations == 1
        here.put("people", {"Rome": 7})  # is not under the query
        here.put("cities", {"Rome": 2})
        for client in clients:
            await client.until_has([{"city": "Rome", "n": 2}])
        assert here.live.evaluations == 2
        other = here.follow(TOP, n=1)
        await other.until_has([{"city": "Rome", "n": 2}])
        assert (here.live.evaluations, len(here.live)) == (3, 2)
        for client in (*clients, other):
            client.subscription.close()
        assert len(here.live) == 0
        for n in range(5):
            here.put("cities", {"Rome": n})
            await asyncio.sleep(0.02)
        assert here.live.evaluations == 3
        listeners = here.views["cities"].listeners
        await until(lambda: len(listeners) == 1)  # that of SQL itself


async def test_a_client_resumes_with_the_result_that_it_has_or_gets_a_gap() -> None:
    async with place() as here:
        here.put("cities", {"Rome": 1})
        client = here.follow(TOP, n=3)
        await client.next()
        client.subscription.close()
        again = here.follow(TOP, after=client.position, n=3)
        await until(lambda: not again.subscription.is_busy)
        assert again.read() == []
        here.put("cities", {"Rome": 2})
        assert (await again.next())["type"] == "change"
        soon = here.follow(TOP, after=client.position, n=3)
        assert ((await soon.next())["type"], soon.position) == ("change", again.position)
        for n in (3, 4):
            here.put("cities", {"Rome": n})
            await again.next()
        again.subscription.close()
        late = here.follow(TOP, after=client.position, n=3)
        gap = await late.next()
        assert (gap["type"], gap["asked"]) == ("gap", client.position)
        assert "keeps no history" in gap["reason"]
        snapshot = await late.next()
        assert (snapshot["type"], snapshot["position"]) == ("snapshot", gap["position"])


async def test_a_slow_client_gets_the_newest_result_and_nothing_waits_for_it() -> None:
    async with place() as here:
        here.put("cities", {f"c{n}": 0 for n in range(20)})
        slow, quick = (here.follow(BIG, ("city",), low=-1) for _ in range(2))
        for client in (slow, quick):
            await client.next()
        for n in range(1, 6):
            here.put("cities", {f"c{at}": n for at in range(20)})
            await quick.until_has(by_text(await here.answer(BIG, low=-1)))
        slow.read(1)  # begins with what was newest then
        here.put("cities", {"c1": 100})
        await quick.until_has(by_text(await here.answer(BIG, low=-1)))
        await slow.until_has(by_text(await here.answer(BIG, low=-1)))
        assert len(slow.messages) == 1 + 20 + 1
        assert {message["type"] for message in slow.messages[1:]} == {"change"}


async def test_a_client_that_reads_nothing_for_long_starts_again() -> None:
    async with place() as here:
        here.put("cities", {"Rome": 0})
        stuck = [here.follow(TOP, n=3) for _ in range(3)]
        for client in stuck:
            await client.next()
        quick = here.follow(TOP, n=3)
        others = []
        for n in range(1, 21):
            here.put("cities", {"Rome": n})
            await quick.until_has([{"city": "Rome", "n": n}])
            others.append(here.follow(TOP, n=3))  # each has a result of its own, and never reads
            await others[-1].next()
        assert [client.subscription.holds() for client in stuck] == [()] * 3
        assert len(others[-1].subscription.holds()) == 1
        assert (await stuck[0].next())["type"] == "snapshot"
        await stuck[0].until_has([{"city": "Rome", "n": 20}])


async def test_a_query_that_depends_on_the_time_is_evaluated_without_a_change() -> None:
    async with place() as here:
        here.put("cities", {"Rome": 0})
        client = here.follow("SELECT city, now() AS at FROM cities", ("city",))
        first = await client.next()
        change = await client.next()
        assert change["row"]["at"] > first["rows"][0]["row"]["at"]


async def test_a_wrong_query_ends_and_one_that_failed_for_now_recovers() -> None:
    async with place() as here:
        here.put("cities", {"12": 1})
        wrong = here.follow("SELECT town FROM cities")
        error = await wrong.next()
        assert (error["type"], error["final"], "town" in error["detail"]) == ("error", True, True)
        await until(lambda: len(here.live) == 0)
        client = here.follow("SELECT city::INT AS number FROM cities")
        await client.until_has([{"number": 12}])
        here.put("cities", {"Rome": 1})
        error = await client.next()
        assert (error["final"], error["title"]) == (False, "Bad Request")
        assert "Rome" in error["detail"]
        here.put("cities", {"Rome": None, "13": 1})
        snapshot = await client.next()
        assert snapshot["type"] == "snapshot"
        await client.until_has([{"number": 12}, {"number": 13}])


async def test_live_queries_survive_the_end_of_the_sql_process() -> None:
    async with place() as here:
        here.put("cities", {"Rome": 1})
        client = here.follow(TOP, n=3)
        await client.next()
        for n in (2, 3):
            pid = here.sql.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            here.put("cities", {"Rome": n})
            await client.until_has([{"city": "Rome", "n": n}])
        assert {message["type"] for message in client.messages[1:]} == {"change"}


@pytest.mark.parametrize(
    ("settings", "sql", "key", "detail"),
    [
        ({"live_query_rows": 2}, BIG, None, "more than 2 rows; add a LIMIT"),
        ({"live_query_bytes": 1024}, f"SELECT repeat('x', 1000) AS x, n FROM ({BIG})", None,
         "more than 1024; select fewer"),
        ({}, "SELECT n % 2 AS odd FROM cities", ("odd",), "several rows have the key [1]"),
        ({"query_seconds": 0.3},
         "SELECT sum(a.range + b.range + n) AS s FROM range(100000) a, range(100000) b, cities",
         None, "took longer than 0.3 s"),
    ],
)  # fmt: skip
async def test_limits_are_errors_that_may_pass(
    settings: dict[str, Any], sql: str, key: tuple[str, ...] | None, detail: str
) -> None:
    async with place(**settings) as here:
        here.put("cities", {"a": 1, "b": 3, "c": 5})
        values: dict[str, Any] = {"low": 0} if "$low" in sql else {}
        client = here.follow(sql, key, **values)
        error = await client.next()
        assert (error["type"], error["final"]) == ("error", False)
        assert detail in error["detail"]
        here.put("cities", {"a": None, "b": None, "c": None})
        assert (await client.next())["type"] == "snapshot"


async def test_the_number_of_live_queries_is_limited() -> None:
    async with place(live_queries=2) as here:
        clients = [here.follow(TOP, n=n) for n in (1, 2, 2)]
        with pytest.raises(Problem, match="2 live queries already"):
            here.follow(TOP, n=3)
        clients[0].subscription.close()
        assert isinstance(here.follow(TOP, n=3), Client)


async def test_values_of_other_types_are_other_questions() -> None:
    async with place() as here:
        assert isinstance(here, Place)
        sql = "SELECT $x AS x FROM cities"
        here.put("cities", {"a": 1})
        expected: list[Any] = [1, 1.0, True, "1", None]
        for client, value in [(here.follow(sql, x=value), value) for value in expected]:
            await client.until_has([{"x": value}])
        assert len(here.live) == 5
