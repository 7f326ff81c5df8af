"""A body with very many invalid events is answered, and delays no other request."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Iterator

import httpx
import pytest
from tests.collect.conftest import Collector, headers

MANY = 99_999
LONGEST = 0.3  # seconds of one turn of the loop, by the processor's clock: others may be busy too
INVALID = {
    "lines": (b"\n".join(b'{"id":"x%d"}' % n for n in range(MANY)), "application/x-ndjson"),
    "array": (b"[" + b",".join([b"1"] * MANY) + b"]", "application/json"),
    "a small body": (b"[" + b",".join([b"1"] * 32_000) + b"]", "application/json"),
    "rows": (b"id,at\n" + b"x,y,z\n" * MANY, "text/csv"),
    "envelopes": (
        json.dumps([{"specversion": "9", "id": n} for n in range(MANY)]).encode(),
        "application/cloudevents-batch+json",
    ),
}


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The duration of each long turn of the loop."""
    found: list[float] = []
    run = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        if (took := time.thread_time() - began) > 0.02:
            found.append(took)

    monkeypatch.setattr(asyncio.Handle, "_run", measured)
    threshold = gc.get_threshold()
    gc.collect()
    gc.freeze()  # as the collector does: what the tests have loaded is not its burden
    gc.set_threshold(10_000)
    yield found
    gc.set_threshold(*threshold)
    gc.unfreeze()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", INVALID)
async def test_other_requests_are_served_while_many_events_are_rejected(
    collector: Collector, turns: list[float], name: str
) -> None:
    body, content_type = INVALID[name]

    def post() -> httpx.Response:
        url = f"{collector.url}/v1/streams/clicks?ack=local"
        return httpx.post(url, content=body, headers={"content-type": content_type}, timeout=120)

    answer = await asyncio.to_thread(post)
    assert answer.status_code == 422, answer.text[:200]
    assert max(turns, default=0.0) < LONGEST
    said = answer.json()
    count = 32_000 if name == "a small body" else MANY
    assert (len(said["rejected"]), said["rejected_total"]) == (1000, count)


@pytest.mark.timeout(180)
async def test_other_requests_are_served_while_large_events_are_rejected(
    collector: Collector, turns: list[float]
) -> None:
    large = b'{"id":"x","at":1,"more":[' + b",".join([b"[]"] * 250_000) + b"]}"
    body = b"[" + b",".join([large] * 9) + b"]"

    def post() -> httpx.Response:
        return httpx.post(f"{collector.url}/v1/streams/clicks?ack=local", content=body, timeout=120)

    answer = await asyncio.to_thread(post)
    assert answer.status_code == 422, answer.text[:200]
    assert max(turns, default=0.0) < LONGEST
    assert [bad["field"] for bad in answer.json()["rejected"]] == ["id"] * 9


async def test_all_rejected_events_are_stored_with_a_reason_and_a_field(
    collector: Collector,
) -> None:
    body = b"\n".join(b'{"id":"x%d","at":"2026-11-16T12:00:00Z"}' % n for n in range(1500))
    answer = await collector.post("clicks", body)
    assert [len(answer.json()["rejected"]), answer.json()["rejected_total"]] == [1000, 1500]
    records = await collector.rejected("clicks")
    assert len(records) == 1500
    for place in (0, 1499):
        found = headers(records[place])
        assert found["field"] == "id"
        assert "int" in found["reason"] or "whole number" in found["reason"]
