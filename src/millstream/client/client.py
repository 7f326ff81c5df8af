"""`Client`: reads rows and changes of a running system, and queries it in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Self
from urllib.parse import quote

import httpx
import msgspec

from millstream.client.backoff import Backoff
from millstream.client.changes import Changes
from millstream.client.credentials import Credentials, Key
from millstream.client.group import GroupMessages
from millstream.client.messages import Entries, Rows, Table, decode_ledger_page
from millstream.client.servers import Servers
from millstream.errors import RequestRefused
from millstream.values.ledger_entry import decode as decode_entry

_encode = msgspec.json.encode


class Client:
    """Reads from any server of one system: `async with Client("http://a", "http://b")`.

    Every call goes to the server that answered last, or to the next one if that does not answer.

    `key` is an API key or a token, for servers with logins. For tokens that expire, it is a
    function that returns the current one (or awaits it): open connections continue with it.
    `ca` is a file (PEM) of authorities that sign the servers' certificates, instead of the usual
    ones.
    """

    def __init__(
        self,
        *urls: str,
        key: Key = "",
        ca: str = "",
        timeout: float = 30.0,
        backoff: Backoff | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._urls = urls
        self._servers = Servers(urls)
        self._backoff = backoff or Backoff()
        self._credentials = credentials or Credentials(key, ca)
        self._http = httpx.AsyncClient(timeout=timeout, **self._credentials.options())

    async def views(self) -> list[dict[str, Any]]:
        """All views: name, key, columns, mode …"""
        answer = await self._get("/v1/views")
        views: list[dict[str, Any]] = answer["views"]
        return views

    async def system(self) -> dict[str, Any]:
        """Streams, views and tiers with their rates and latencies."""
        answer: dict[str, Any] = await self._get("/v1/system")
        return answer

    async def snapshot(
        self,
        view: str,
        *,
        where: str | None = None,
        select: Sequence[str] | None = None,
        order: str | None = None,
        limit: int | None = None,
        lineage: bool = False,
    ) -> Rows:
        """The current rows of a view, and their position."""
        parameters = {
            "where": where,
            "select": ",".join(select) if select else None,
            "order": order,
            "limit": limit,
            "lineage": "true" if lineage else None,
        }
        params = {name: value for name, value in parameters.items() if value is not None}
        path = f"/v1/views/{quote(view, safe='')}"
        response = await self._servers.request(self._http, "GET", path, params=params)
        return msgspec.json.decode(response.content, type=Rows)

    async def get(self, view: str, *key: Any) -> dict[str, Any] | None:
        """The row with that key (one value per key column), or None if there is none."""
        path = f"/v1/views/{quote(view, safe='')}/{quote(_encode(key), safe='')}"
        try:
            response = await self._servers.request(self._http, "GET", path)
        except RequestRefused as refused:
            if refused.status == 404:
                return None
            raise
        row: dict[str, Any] = msgspec.json.decode(response.content)["row"]
        return row

    async def ledger(
        self, view: str, *, after: str | None = None, where: str | None = None
    ) -> Entries:
        """All entries of a view's ledger until now, or those since `after`."""
        path, entries, gap = f"/v1/views/{quote(view, safe='')}/ledger", [], None
        while True:
            parameters = {"after": after, "where": where, "wait": 0}
            params = {name: value for name, value in parameters.items() if value is not None}
            response = await self._servers.request(self._http, "GET", path, params=params)
            page = decode_ledger_page(response.content)
            after = page.position
            entries += [decode_entry(bytes(change.row)) for change in page.changes]
            if page.gap is not None:
                entries, gap = [], page.gap.get("reason", "")
            elif not page.changes:
                return Entries(after, entries, gap)

    def changes(
        self,
        view: str | None = None,
        *,
        stream: str | None = None,
        ledger: str | None = None,
        query: str | None = None,
        params: Mapping[str, Any] | None = None,
        sql: str | None = None,
        after: str | datetime | None = None,
        where: str | None = None,
        select: Sequence[str] | None = None,
        limit: int | None = None,
        lineage: bool = False,
        when_slow: Literal["buffer", "conflate", "sample", "disconnect"] = "buffer",
        sample: float | None = None,
        max_rate: float | None = None,
        max_rate_per_key: float | None = None,
        max_bytes: int | None = None,
        pages: bool = False,
        attempts: int | None = None,
    ) -> Changes:
        """Subscribe to a view, or to the events of a stream: a snapshot, then every change.

        For the `ledger` of a view: a snapshot without rows, then every entry from the first one on.
        For a named `query` with its `params`, or for `sql`: the result, then what changes in it.
        With `after`: only the changes since that position or time. If a server fails, the next one
        continues without loss; `attempts` failures in a row raise NotReachable (None: never).
        `when_slow` and the rates, in changes per second, say what may be left out. With `pages`, a
        large snapshot comes as several messages.
        """
        if (view, stream, ledger, query, sql).count(None) != 4:
            raise TypeError(
                "follow either a view, or a stream, or a view's ledger, or a query: "
                "changes('by_city'), changes(stream='rsvps'), changes(ledger='by_city'), "
                "changes(query='top_cities', params={'n': 3}) or changes(sql='SELECT …')"
            )
        request = {
            "view": view,
            "stream": stream,
            "ledger": ledger,
            "query": query,
            "params": dict(params) if params else None,
            "sql": sql,
            "after": after.isoformat() if isinstance(after, datetime) else after,
            "where": where,
            "select": list(select) if select else None,
            "limit": limit,
            "lineage": True if lineage else None,
            "when_slow": when_slow,
            "sample": sample,
            "max_rate": max_rate,
            "max_rate_per_key": max_rate_per_key,
            "max_bytes": max_bytes,
        }
        # A list of servers of its own: another connection's failure must not change its server.
        return Changes(
            Servers(self._urls),
            request,
            backoff=self._backoff,
            attempts=attempts,
            credentials=self._credentials,
            pages=pages,
        )

    def group(
        self,
        name: str,
        view: str | None = None,
        *,
        stream: str | None = None,
        ledger: str | None = None,
        where: str | None = None,
        select: Sequence[str] | None = None,
        lineage: bool = False,
        after: str | None = None,
        ack: bool = True,
        ack_timeout: float | None = None,
        max_attempts: int | None = None,
        prefetch: int = 1,
        auto_ack: bool = True,
        attempts: int | None = None,
    ) -> GroupMessages:
        """Become a member of a group, which shares the changes of a view, stream or ledger.

        The first member creates the group; it starts at `after` (a position, a time, `start` or
        `end`; by default with the oldest record in the log). Each message goes to one member, in
        order per key, and again to another one if it is not acknowledged within `ack_timeout`
        seconds. `prefetch` messages are given to this member at once. With auto_ack=False call
        `message.ack()`, or use `async with message`. `attempts` as in `changes`.
        """
        if (view, stream, ledger).count(None) != 2:
            raise TypeError(
                "a group reads either a view, or a stream, or a view's ledger: group('billing', "
                "'orders'), group('billing', stream='clicks') or group('billing', ledger='orders')"
            )
        if prefetch < 1:
            raise ValueError(f"prefetch is {prefetch}; a member gets at least one message")
        request = {
            "group": name,
            "view": view,
            "stream": stream,
            "ledger": ledger,
            "where": where,
            "select": list(select) if select else None,
            "lineage": True if lineage else None,
            "after": after,
            "ack": ack,
            "ack_timeout": ack_timeout,
            "max_attempts": max_attempts,
        }
        return GroupMessages(
            Servers(self._urls),
            request,
            credentials=self._credentials,
            backoff=self._backoff,
            attempts=attempts,
            prefetch=prefetch,
            auto_ack=auto_ack,
        )

    async def groups(self) -> list[dict[str, Any]]:
        """All groups with their members, position, lag and counts; needs the right `admin`."""
        answer = await self._get("/v1/groups")
        groups: list[dict[str, Any]] = answer["groups"]
        return groups

    async def show_group(self, name: str) -> dict[str, Any]:
        """One group with its partitions and servers; needs the right `admin`."""
        answer: dict[str, Any] = await self._get(f"/v1/groups/{quote(name, safe='')}")
        return answer

    async def reset_group(self, name: str, to: str) -> str:
        """Let a group continue at a time, a position, `start` or `end`; returns the position."""
        path = f"/v1/groups/{quote(name, safe='')}/reset"
        response = await self._servers.request(self._http, "POST", path, json={"to": to})
        position: str = msgspec.json.decode(response.content)["position"]
        return position

    async def drop_group(self, name: str) -> None:
        """Remove a group, its position and its undelivered messages; needs the right `admin`."""
        path = f"/v1/groups/{quote(name, safe='')}"
        await self._servers.request(self._http, "DELETE", path)

    async def query(self, sql: str, *, limit: int | None = None) -> Table:
        """The answer to a read-only SQL query over all views."""
        query = {"sql": sql} if limit is None else {"sql": sql, "limit": limit}
        response = await self._servers.request(self._http, "POST", "/v1/query", json=query)
        return msgspec.json.decode(response.content, type=Table)

    async def connections(self) -> list[dict[str, Any]]:
        """The connections of the server's clients; needs the right `admin`."""
        answer = await self._get("/v1/connections")
        connections: list[dict[str, Any]] = answer["connections"]
        return connections

    async def close_connection(self, identifier: str) -> None:
        """Close a client's connection, by its id; needs the right `admin`."""
        path = f"/v1/connections/{quote(identifier, safe='')}"
        await self._servers.request(self._http, "DELETE", path)

    async def queries(self) -> list[dict[str, Any]]:
        """The named queries that you may run: name, parameters, columns …"""
        answer = await self._get("/v1/queries")
        queries: list[dict[str, Any]] = answer["queries"]
        return queries

    async def run(self, query: str, /, **params: str | int | float | bool | None) -> Table:
        """The answer to a named query; parameters that are None or missing have their defaults."""
        given = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in params.items()
            if value is not None
        }
        path = f"/v1/queries/{quote(query, safe='')}"
        response = await self._servers.request(self._http, "GET", path, params=given)
        return msgspec.json.decode(response.content, type=Table)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _get(self, path: str) -> Any:
        response = await self._servers.request(self._http, "GET", path)
        return msgspec.json.decode(response.content)
