"""Subscriptions over the WebSocket."""

from __future__ import annotations

from tests.serve.stage import Pipeline, socket

from millstream.serve.service import Server


async def test_a_subscriber_gets_the_rows_and_then_their_changes(
    pipeline: Pipeline, server: Server
) -> None:
    async with socket(server) as client:
        first = await client.subscribe(view="by_city")
        assert first["type"] == "snapshot"
        assert first["rows"] == []
        pipeline.count("Berlin", 1)
        change = await client.next()
        assert change["op"] == "upsert"
        assert change["key"] == ["Berlin"]
        assert change["row"] == {"city": "Berlin", "n": 1}
