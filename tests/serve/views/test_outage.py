"""A server while Kafka is away."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import httpx
import pytest
from tests.serve.pipeline import SECONDS, Pipeline, socket
from tests.wait_until import until

from millstream.log.broker import Broker
from millstream.log.settings import LogSettings
from millstream.serve.views import view_readers


@pytest.mark.kafka
async def test_rows_are_served_while_kafka_is_away_and_changes_continue_afterwards(
    tmp_path: Path, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(tmp_path) as broker:
        pipeline = Pipeline(app_name, LogSettings(bootstrap=broker.bootstrap))
        pipeline.count("Rome", 1)
        pipeline.flush()
        async with pipeline.server() as server, socket(server) as client:
            first = await client.subscribe(view="by_city")
            assert first["rows"][0]["row"]["n"] == 1
            broker.kill()
            looks = 0

            def time_out(log: LogSettings, names: Iterable[str]) -> dict[str, str]:
                nonlocal looks
                looks += 1
                raise TimeoutError  # what a dead broker gives, without the half minute before

            with monkeypatch.context() as patched:
                patched.setattr(view_readers, "topic_ids", time_out)
                await until(lambda: looks > 1)
            async with httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as http:
                assert (await http.get("/health/ready")).status_code == 200
                assert (await http.get("/v1/views/by_city")).json()["rows"][0]["n"] == 1
            broker.start()
            pipeline.count("Rome", 2)
            pipeline.flush()
            assert (await client.next())["row"]["n"] == 2, "no gap: the topic is the same"
