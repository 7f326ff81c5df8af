"""Views that a test feeds by hand, live queries over them, and clients of these."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from tests.wait_until import until

from millstream.log.record import Record
from millstream.serve.queries.live_query import LiveQueries, Question
from millstream.serve.queries.live_subscription import LiveSubscriber, LiveSubscription
from millstream.serve.settings import ServeSettings
from millstream.serve.views.encoding import WebSocketFormat
from millstream.serve.views.served_view import ServedView
from millstream.store.sql.service import SqlService
from millstream.values.view_description import ViewColumn, ViewDescription
from millstream.web.auth.caller import ANYBODY

CITIES = [ViewColumn("city", "string"), ViewColumn("n", "bigint")]


class Place:
    """Two views, `cities` and `people`, and live queries over them."""

    def __init__(self, **settings: Any) -> None:
        self.settings = ServeSettings(**{"live_query_seconds": 0.01, **settings})
        self.sql = SqlService(
            memory="256MB", seconds=self.settings.query_seconds, newest=self.settings.newest_rows
        )
        self.views = {name: self._view(name) for name in ("cities", "people")}
        self.live = LiveQueries(self.sql, self.views, self.settings)
        self._offset = 0

    def _view(self, name: str) -> ServedView:
        view = ServedView(name, "view", name, self.settings, key=("city",))
        self.sql.add(view)
        view.listeners.append(self.sql.changed)
        described = ViewDescription(
            name=name,
            inputs=["x"],
            key=["city"],
            columns=CITIES,
            mode="real_time",
            reason="",
            guarantee="",
            lineage="revision",
            generation="1",
        )
        view.describe(described)
        view.reset("epoch", {0: 0})
        return view

    def put(self, view: str, rows: dict[str, int | None]) -> None:
        """Set the numbers of cities; None deletes one."""
        records = []
        for city, n in rows.items():
            row = None if n is None else json.dumps({"city": city, "n": n}).encode()
            records.append(Record("t", 0, self._offset, 0, json.dumps([city]).encode(), row, ()))
            self._offset += 1
        self.views[view].apply(records)

    def follow(
        self, sql: str, key: tuple[str, ...] | None = None, after: str | None = None, **values: Any
    ) -> Client:
        return Client(self, Question(sql, values, key), after)

    async def answer(self, sql: str, **values: Any) -> list[dict[str, Any]]:
        """The rows that the query has now."""
        answer = json.loads((await self.sql.answer(sql, 1000, values)).body)
        names = [column["name"] for column in answer["columns"]]
        return [dict(zip(names, row, strict=True)) for row in answer["rows"]]


@contextlib.asynccontextmanager
async def place(**settings: Any) -> AsyncIterator[Place]:
    opened = Place(**settings)
    try:
        yield opened
    finally:
        opened.live.stop()
        await opened.sql.stop()


class Client:
    """A client that applies what it is sent."""

    def __init__(self, place: Place, question: Question, after: str | None = None) -> None:
        self._woken = asyncio.Event()
        query = place.live.open(question)
        subscriber = LiveSubscriber(ANYBODY, WebSocketFormat("a"), self._woken.set, after)
        self.subscription = LiveSubscription(query, subscriber)
        self.messages: list[dict[str, Any]] = []
        self.rows: dict[str, tuple[Any, Any]] = {}
        self.position = ""
        self.is_whole = False  # not in the middle of a difference

    def read(self, size: int = 65_536) -> list[dict[str, Any]]:
        """Read what there is now, about `size` bytes of it."""
        messages = [json.loads(text) for text in self.subscription.next_messages(size)]
        for message in messages:
            self._apply(message)
        self.messages += messages
        return messages

    async def next(self) -> dict[str, Any]:
        """The next message."""
        seen = len(self.messages)
        while len(self.messages) == seen:
            self._woken.clear()
            if not self.read(1):
                await asyncio.wait_for(self._woken.wait(), 30)
        return self.messages[-1]

    async def until_has(self, rows: list[dict[str, Any]]) -> None:
        """Read until the client has these rows."""

        def has() -> bool:
            self.read()
            return self.is_whole and self.listed() == rows

        await until(has, 30)

    def listed(self) -> list[dict[str, Any]]:
        """The rows in their order, or in the order of their text if they have none."""
        return [row for row, _ in sorted(self.rows.values(), key=_place)]

    def _apply(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "snapshot":
                self.rows = {
                    json.dumps(each["key"]): (each["row"], each.get("rank"))
                    for each in message["rows"]
                }
                assert len(self.rows) == len(message["rows"]) == message["total"]
                self.is_whole, self.position = True, message["position"]
            case "change":
                key = json.dumps(message["key"])
                if message["op"] == "delete":
                    del self.rows[key]
                else:
                    self.rows[key] = (message["row"], message.get("rank"))
                self.is_whole, self.position = message["more"] == 0, message["position"]


def _place(held: tuple[Any, Any]) -> Any:
    row, rank = held
    return (rank, "") if rank is not None else (0, json.dumps(row))
