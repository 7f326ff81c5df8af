"""No byte that a caller receives shows a row or column that the policy hides from it.

Each example is a pipeline with a policy and callers that hypothesis draws, a real server and a real
Kafka. Clients write, read, follow and resume on every transport, and the server restarts. The
variable LEAK_EXAMPLES makes it longer: `make soak-leaks`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import json
import os
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.serve.access import world as model
from tests.serve.access.callers import caller, connect, serve
from tests.serve.access.world import (
    COLUMNS,
    FEED,
    QUERIES,
    SECRET,
    STREAM,
    VIEW,
    WHOLE,
    World,
    key_of,
)
from tests.serve.pipeline import SECONDS, Pipeline
from tests.wait_until import until

from millstream.log.settings import LogSettings
from millstream.log.topic_names import ledger_topic, stream_topic, view_topic
from millstream.serve.api.formats import FORMATS
from millstream.serve.service import Server
from millstream.values.view_description import ViewColumn
from millstream.web.auth.caller import Caller

EXAMPLES = int(os.environ.get("LEAK_EXAMPLES", "4"))
_names = itertools.count()
_ANSWERS = (b"snapshot", b"error")

KEYS = [f"z{letter}{number}key" for letter in "ab" for number in range(3)]


@settings(
    max_examples=EXAMPLES,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink would take minutes
    print_blob=True,
)
@given(st.integers(0, 2**32))
@pytest.mark.timeout(3600)
def test_no_caller_receives_what_a_policy_hides(
    log_settings: LogSettings, app_name: str, seed: int
) -> None:
    # The example is drawn by a seed, because the first examples of hypothesis are the simplest:
    # callers without claims and one row. There is time for a few examples only.
    dice = random.Random(seed)
    world = World(draw_policies(dice), dice.choice(model.HIDE), draw_callers(dice))
    run = Run(world, f"{app_name}_{next(_names)}", log_settings, dice)
    asyncio.run(run.play())


def draw_policies(dice: random.Random) -> dict[str, model.RowPolicy]:
    return {target: dice.choice(model.POLICIES) for target in (VIEW, FEED, STREAM)}


def draw_callers(dice: random.Random) -> dict[str, dict[str, Any]]:
    choices: dict[str, list[Any]] = {
        "tenant": ["t0", "t1", 7, None],
        "role": ["support", "billing", "sales"],
        "level": [0, 1, 2, 3],
        "groups": [[], ["t0"], ["t0", "t1"], "t1"],
        "prefix": ["za", "zb", "z", ""],
    }
    return {
        name: {claim: dice.choice(each) for claim, each in choices.items() if dice.random() < 0.8}
        for name in "abc"
    }


@dataclass
class Follower:
    """A client's copy of the view, as its messages make it."""

    rows: dict[str, Any] = field(default_factory=dict)
    position: str = ""
    pages: dict[str, Any] = field(default_factory=dict)

    def apply(self, message: dict[str, Any]) -> None:
        if message["type"] == "snapshot":
            page = {json.dumps(r["key"]): r["row"] for r in message["rows"]}
            self.pages |= page
            if message.get("last", True):
                self.rows, self.pages = self.pages, {}
        elif message["type"] == "change":
            key = json.dumps(message["key"])
            if message["op"] == "upsert":
                self.rows[key] = message["row"]
            else:
                self.rows.pop(key, None)
        self.position = message.get("position", self.position)


def _login(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


class Run:
    """One example."""

    def __init__(self, world: World, name: str, log: LogSettings, dice: random.Random) -> None:
        self.world = world
        self.dice = dice
        self.pipeline = Pipeline(name, log, world.declare(name))
        columns = [ViewColumn(column, type_) for column, type_ in COLUMNS.items()]
        self.pipeline.describe(VIEW, ["id"], columns, ledger=["n"])
        self.pipeline.describe(FEED, None, columns)
        self.pipeline.flush()
        self.callers: dict[str, Caller] = {n: caller(**c) for n, c in world.callers.items()}
        self.followers = {name: Follower() for name in self.callers}
        self.positions: list[str] = []  # of all callers: anybody may send any position
        self.query_positions: list[str] = []  # in the same way
        self.tags: list[tuple[str, str]] = []  # of whom
        self.revision = itertools.count(1)

    async def play(self) -> None:
        """Play on two servers, one after the other."""
        for is_last in (False, True):
            changes = self.dice.choice([4, 1000])  # held in memory; older ones are in Kafka
            async with serve(self.pipeline, self.callers, recent_changes=changes) as server:
                await self._play_on(server, queries=is_last)
            self._change()  # while no server runs

    async def _play_on(self, server: Server, *, queries: bool) -> None:
        async with contextlib.AsyncExitStack() as stack:
            http = httpx.AsyncClient(base_url=server.url, timeout=SECONDS, verify=False)
            self.http = await stack.enter_async_context(http)
            sockets = {
                name: await stack.enter_async_context(self._follow(server, name))
                for name in self.callers
            }
            for _ in range(3):
                self._change()
                await self._settle(server)
                name = self.dice.choice("abc")
                await self._read(name)
                await self._resume(server, name)
            for name, client in sockets.items():
                await self._check_follower(name, client)
            for name in self.callers:
                await self._read(name)
                await self._resume(server, name)
                if queries:  # on one server only: another process has to start
                    await self._query(name)
                    await self._call_queries(name)
                    await self._follow_queries(server, name)

    def _change(self) -> None:
        dice = self.dice
        for _ in range(dice.randrange(1, 12)):
            if dice.random() < 0.2:
                self._delete()
            else:
                level = dice.choice([None, 0, 1, 2, 3])
                tenant, is_open = dice.choice(["t0", "t1", None]), dice.random() < 0.5
                self._write(dice.choice(KEYS), tenant, level, is_open)

    def _write(self, id_: str, tenant: str | None, level: int | None, is_open: bool) -> None:
        app, world, write = self.pipeline.app.name, self.world, self.pipeline.write
        row = world.new_row(VIEW, id_, tenant, level, is_open)
        world.table[key_of(id_)] = row
        self.pipeline.put(VIEW, [id_], row, next(self.revision))
        place = {"source": "x", "partition": 0, "offset": next(self.revision), "row": 0}
        row = world.new_row(FEED, id_, tenant, level, is_open)
        world.feed.append(row)
        write(view_topic(app, FEED), "x/0", {**row, "_position": place})
        row = world.new_row(STREAM, id_, tenant, level, is_open)
        write(stream_topic(app, STREAM), id_, {**row, "unmentioned": row[SECRET]})
        write(ledger_topic(app, VIEW), json.dumps([id_]), world.new_entry(id_))

    def _delete(self) -> None:
        if self.world.table:
            key = self.dice.choice(sorted(self.world.table))
            del self.world.table[key]
            self.pipeline.put(VIEW, json.loads(key), None)

    async def _settle(self, server: Server) -> None:
        """Wait until the server has everything that was written."""
        self.pipeline.flush()
        views, world = server.context.views, self.world
        wanted = {key: row["public"] for key, row in world.table.items()}

        def has_all() -> bool:
            held = views[VIEW].table.rows
            return len(views[FEED].table) == len(world.feed) and wanted == {
                json.dumps(json.loads(key)): row["public"] for key, row in held.items()
            }

        await until(has_all)

    def _check(self, name: str, received: bytes, asked: str) -> None:
        leaks = self.world.leaks(name, received, asked)
        assert not leaks, f"{self.world.callers[name]} received {leaks} after {asked}: {received!r}"

    @contextlib.asynccontextmanager
    async def _follow(self, server: Server, name: str) -> AsyncIterator[Any]:
        """A WebSocket that follows the view, from where the caller was before."""
        async with connect(server, self.callers[name]) as client:
            after = self.followers[name].position
            resume = {"after": after} if after else {}
            await client.send(type="subscribe", id="f", view=VIEW, lineage=True, **resume)
            yield client

    async def _check_follower(self, name: str, client: Any) -> None:
        """The messages have no hidden mark, and make exactly the rows that the caller sees."""
        follower = self.followers[name]
        async with asyncio.timeout(SECONDS):
            while not self._is_current(name, follower):
                self._take(name, follower, await client.connection.recv())
            await client.send(type="ping")
            while True:
                text = await client.connection.recv()
                if json.loads(text)["type"] == "pong":
                    break
                self._take(name, follower, text)
        assert self._is_current(name, follower)

    def _take(self, name: str, follower: Follower, text: str) -> None:
        self._check(name, text.encode(), "subscribing")
        message = json.loads(text)
        follower.apply(message)
        if "position" in message:
            self.positions.append(message["position"])

    def _is_current(self, name: str, follower: Follower) -> bool:
        held = {
            key: {column: value for column, value in row.items() if column in COLUMNS}
            for key, row in follower.rows.items()
        }
        return held == self.world.visible_table(name) and bool(follower.position)

    async def _resume(self, server: Server, name: str) -> None:
        """Continue from positions of any caller, on every transport, from memory and from Kafka."""
        own = copy.deepcopy(self.followers[name])
        async with connect(server, self.callers[name]) as client:
            if own.position:
                subscribe = {"type": "subscribe", "id": "f", "view": VIEW, "after": own.position}
                await client.send(**subscribe)
                await self._check_follower_copy(name, own, client)
            zero = f"{server.context.views[VIEW].epoch}:0=0"
            for number, after in enumerate([zero, *self.positions[-12::4]]):
                await client.send(type="subscribe", id=str(number), view=VIEW, after=after)
            for kind, target in (("stream", STREAM), ("ledger", VIEW), ("view", FEED)):
                await client.send(type="subscribe", id=kind, **{kind: target})
            await self._drain(name, client)
        for after in (zero, *self.positions[-1:]):
            for path in (f"views/{VIEW}/changes", f"views/{FEED}/changes", f"views/{VIEW}/ledger"):
                await self._get(name, f"/v1/{path}?wait=0&lineage=true&after={after}")

    async def _check_follower_copy(self, name: str, follower: Follower, client: Any) -> None:
        async with asyncio.timeout(SECONDS):
            while not self._is_current(name, follower):
                self._take(name, follower, await client.connection.recv())

    async def _drain(self, name: str, client: Any) -> None:
        """Take messages until none comes for a moment: replays end after the answer to a ping."""
        with contextlib.suppress(TimeoutError):
            while True:
                text = await asyncio.wait_for(client.connection.recv(), 0.15)
                self._check(name, text.encode(), "subscribing")

    async def _get(self, name: str, path: str, **headers: str) -> httpx.Response:
        response = await self.http.get(path, headers={**_login(name), **headers})
        self._check_response(name, response, f"{path} {headers}")
        return response

    def _check_response(self, name: str, response: httpx.Response, asked: str) -> None:
        head = "\n".join(f"{each}: {value}" for each, value in response.headers.items())
        self._check(name, head.encode() + response.content, asked)

    async def _read(self, name: str) -> None:
        await self._read_snapshots(name)
        await self._read_rows(name)
        await self._read_events(name, f"views/{VIEW}/changes", f"streams/{STREAM}/events")

    async def _read_snapshots(self, name: str) -> None:
        world, view = self.world, f"/v1/views/{VIEW}"
        answer = await self._get(name, view)
        expected = world.visible_table(name)
        found = {key_of(row["id"]): row for row in answer.json()["rows"]}
        assert (found, answer.json()["total"]) == (expected, len(expected))
        assert "authorization" in answer.headers["vary"]
        feed = (await self._get(name, f"/v1/views/{FEED}?limit=1000")).json()["rows"]
        assert feed == world.visible_feed(name)
        for query in (
            "lineage=true&order=public",
            f"order={SECRET} desc",
            "order=zq_car",
            f"select={SECRET}",
            "select=zq_car",
            f"where={SECRET} LIKE 'zsec%25'",
            "where=public > 'z' OR n / 0 > 1",
            f"where={quote('zq_car IS NULL')}",
        ):
            await self._get(name, f"{view}?{query}")
        for path in ("/v1/views", "/v1/openapi.json", "/v1/queries"):
            await self._get(name, path)
        for media in ("text/csv", "application/x-ndjson", "application/vnd.apache.arrow.stream"):
            await self._get(name, f"{view}?lineage=true", accept=media)
        for other, tag in self.tags[-6:]:
            cached = await self._get(name, view, **{"if-none-match": tag})
            same = world.visible_table(name) == world.visible_table(other)
            assert cached.status_code == 200 or same
        self.tags.append((name, answer.headers["etag"]))

    async def _read_rows(self, name: str) -> None:
        visible = self.world.visible_table(name)
        for id_ in ["nosuchkey", *(json.loads(key)[0] for key in sorted(self.world.table))]:
            answer = await self._get(name, f"/v1/views/{VIEW}/{id_}?lineage=true")
            assert answer.status_code == (200 if key_of(id_) in visible else 404)

    async def _read_events(self, name: str, *paths: str) -> None:
        """Read server-sent events until the snapshot, or why there is none, is there."""
        headers = {**_login(name), "accept": "text/event-stream"}
        for path in paths:
            received = b""
            async with self.http.stream("GET", f"/v1/{path}", headers=headers) as response:
                async for part in response.aiter_bytes():
                    received += part
                    is_answered = any(b'"type":"%b"' % each in received for each in _ANSWERS)
                    if is_answered and received.endswith(b"\n\n"):
                        break
            self._check(name, received, path)

    async def _query(self, name: str) -> None:
        expected = len(self.world.visible_table(name))
        assert await self._ask(name, f"SELECT count(*) FROM {VIEW}") == [[expected]]
        for sql in (
            f"SELECT * FROM {VIEW}",
            f"SELECT {SECRET} FROM main.{VIEW}",
            f"SELECT zq_car FROM {VIEW}",
            f"SELECT error(public || id) FROM {VIEW}",
            f"SELECT public::INT FROM {VIEW} WHERE tenant = 't0'",
            f"SELECT string_agg(f.public) FROM {FEED} f JOIN {VIEW} v ON error(v.public) IS NULL",
        ):
            await self._ask(name, sql)

    async def _call_queries(self, name: str) -> None:
        """Call and follow the named queries over HTTP."""
        answer = (await self._get(name, f"/v1/queries/{WHOLE}")).json()
        names = [column["name"] for column in answer["columns"]]
        rows = [dict(zip(names, row, strict=True)) for row in answer["rows"]]
        assert {key_of(row["id"]): row for row in rows} == self.world.visible_table(name)
        for query in QUERIES:
            path = f"queries/{query}"
            for media in FORMATS:
                await self._get(name, f"/v1/{path}", accept=media)
            for after in ("", *self.query_positions[-2:]):
                await self._get(name, f"/v1/{path}/changes?wait=0&after={after}")
            await self._read_events(name, f"{path}/changes")

    async def _follow_queries(self, server: Server, name: str) -> None:
        """Follow the named queries on a WebSocket while the views change."""
        follower = Follower()
        async with connect(server, self.callers[name]) as client:
            await client.send(type="subscribe", id="f", query=WHOLE)
            await self._check_follower_copy(name, follower, client)
            self._change()
            await self._settle(server)
            await self._check_follower_copy(name, follower, client)
            self.query_positions.append(follower.position)
            await client.send(type="unsubscribe", id="f")
            for query in QUERIES:
                await client.send(type="subscribe", id=query, query=query)
            await self._take_answers(name, client, set(QUERIES))

    async def _take_answers(self, name: str, client: Any, unanswered: set[str]) -> None:
        """Take messages until each of these subscriptions has one."""
        async with asyncio.timeout(SECONDS):
            while unanswered:
                text = await client.connection.recv()
                self._check(name, text.encode(), "subscribing")
                unanswered.discard(json.loads(text)["id"])

    async def _ask(self, name: str, sql: str) -> Any:
        response = await self.http.post("/v1/query", json={"sql": sql}, headers=_login(name))
        self._check_response(name, response, sql)
        return response.json().get("rows")
