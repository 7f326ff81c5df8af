"""Messages of a server match their description: no field more, none less."""

from __future__ import annotations

from typing import Any, Union

import httpx
import msgspec
import pytest
from tests.serve.pipeline import Pipeline, events, following, socket

from millstream.serve.description import messages
from millstream.serve.description.messages import (
    SENT,
    Poll,
    ProblemDetails,
    Table,
    ViewRow,
    ViewRows,
    Views,
)
from millstream.serve.service import Server

CHANGES = "/v1/views/by_city/changes"


def check(message: Any, *kinds: type) -> None:
    """ValidationError unless it is one of them; and it has no field more."""
    read = msgspec.convert(message, Union[kinds])  # noqa: UP007 - made from a tuple
    assert msgspec.to_builtins(read) == message


async def test_websocket_messages_match_their_description(
    pipeline: Pipeline, server: Server, http: httpx.AsyncClient
) -> None:
    pipeline.count("Rome", 1)
    seen: set[str] = set()
    async with socket(server) as client:
        for asked in (
            {"type": "subscribe", "id": "a", "view": "by_city", "after": "x:0=1"},
            {"type": "subscribe", "id": "b", "stream": "rsvps"},
            {"type": "subscribe", "id": "c", "ledger": "per_minute"},
            {"type": "subscribe", "id": "d"},
            {"type": "subscribe", "id": "e", "view": "by_city", "group": "desk"},
            {"type": "update", "id": "a", "max_rate": 1000},
            {"type": "nonsense"},
            {"type": "ping"},
            {"type": "update", "max_bytes": 1_000_000},
            {"type": "unsubscribe", "id": "b"},
        ):
            await client.send(**asked)
        # tests/serve/test_login.py has the messages about logins.
        others = {"lag", "authenticate", "authenticated"}
        wanted = {each.__struct_config__.tag for each in SENT} - others
        # Others may come in between: `lag` does after 15 seconds.
        while not wanted <= seen:
            message = await client.next()
            check(message, *SENT)
            seen.add(message["type"])
            if (message["type"], message.get("id")) == ("snapshot", "a"):
                pipeline.count("Rome", 2)  # earlier, the snapshot could have it: no change then
                pipeline.flush()
            if message["type"] == "message":
                check((await http.get("/v1/groups")).json(), messages.GroupList)
                await server.context.groups.reset("desk", "start")


async def test_http_answers_match_their_description(
    http: httpx.AsyncClient, pipeline: Pipeline
) -> None:
    async with events(http, CHANGES) as stream:
        await following(stream)
        pipeline.count("Rome", 1)
        check(await following(stream), *messages.EVENTS)
    position = (await http.get("/v1/views/by_city")).json()["position"]
    pipeline.count("Rome", 2)
    for path, kind in (
        ("/v1/views", Views),
        ("/v1/views/by_city", ViewRows),
        ("/v1/views/by_city/Rome", ViewRow),
        ("/v1/views/nothing", ProblemDetails),
        (CHANGES, Poll),
        (f"{CHANGES}?after={position}", Poll),
        (f"{CHANGES}?after=x:0=1", Poll),
    ):
        check((await http.get(path)).json(), kind)
    check((await http.post("/v1/query", json={"sql": "SELECT * FROM by_city"})).json(), Table)


async def test_events_without_names_reach_onmessage(
    http: httpx.AsyncClient, pipeline: Pipeline
) -> None:
    pipeline.count("Rome", 1)
    accept = {"Accept": "text/event-stream"}
    async with http.stream("GET", f"{CHANGES}?named=false", headers=accept) as response:
        lines = []
        async for line in response.aiter_lines():
            lines.append(line)
            if line.startswith("data:"):
                break
    assert [line.partition(":")[0] for line in lines if line] == ["retry", "id", "data"]
    assert '"type":"snapshot"' in lines[-1]
    wrong = await http.get(f"{CHANGES}?named=perhaps", headers=accept)
    assert (wrong.status_code, "neither true nor false" in wrong.text) == (400, True)


async def test_a_first_poll_mentions_server_sent_events(http: httpx.AsyncClient) -> None:
    first = await http.get(CHANGES)
    assert "Accept: text/event-stream" in first.json()["hint"]
    assert first.headers["vary"] == "accept, authorization"
    assert first.headers["link"] == f'<{CHANGES}>; rel="alternate"; type="text/event-stream"'
    asked = {"after": first.json()["position"], "wait": "0"}
    assert "hint" not in (await http.get(CHANGES, params=asked)).json()
    assert "hint" not in (await http.get(CHANGES, headers={"Accept": "application/json"})).json()


@pytest.mark.parametrize("path", ["/v1/openapi.json", "/v1/asyncapi.json"])
async def test_every_reference_in_a_description_exists(http: httpx.AsyncClient, path: str) -> None:
    document = (await http.get(path)).json()
    assert {"Subscribe", "Snapshot"} <= document["components"]["schemas"].keys()
    for reference in references(document):
        found = document
        for name in reference.removeprefix("#/").split("/"):
            found = found[name]
        assert found


def references(document: Any) -> list[str]:
    if isinstance(document, dict):
        own = [document["$ref"]] if isinstance(document.get("$ref"), str) else []
        return own + [each for value in document.values() for each in references(value)]
    return (
        [each for one in document for each in references(one)] if isinstance(document, list) else []
    )
