"""Any collector finds the event of any receipt of the cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.collect.conftest import click, collect, problem, shop

from millstream.collect.intake.recent_entries import RecentEntries
from millstream.collect.receipts import lookup
from millstream.collect.receipts.lookup import Lookup
from millstream.log.connection import client_config
from millstream.log.producing.producer import RecordMetadata
from millstream.log.settings import LogSettings
from millstream.log.topic_names import rejected_topic, stream_topic
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.values.receipt import Receipt, Receipts
from millstream.web.problem import Problem

BOOK = Receipts(b"k" * 32)
NOW = time.time_ns() // 1_000_000


class Log:
    """Records in two partitions, as collectors would have written them."""

    def __init__(self, app: App, log: LogSettings) -> None:
        self.app, self.settings = app, log.model_copy(update={"partitions": 2})
        ensure_topics(app, self.settings)
        self._producer = Producer(client_config(log))

    def put(
        self,
        collector: str,
        sequence: int,
        index: int = 0,
        *,
        partition: int = 0,
        at: int = NOW,
        reason: str = "",
    ) -> None:
        name = rejected_topic if reason else stream_topic
        headers = {"ce_id": f"{collector}-{sequence}.{index}", "ce_collector": collector}
        headers |= {"ce_sequence": str(sequence)} | ({"ce_index": str(index)} if index else {})
        headers |= {"reason": reason} if reason else {}
        self._producer.produce(
            name(self.app.name, "clicks"),
            b"{}",
            partition=partition,
            timestamp=at,
            headers=list(headers.items()),
        )
        assert self._producer.flush(30) == 0

    def lookup(
        self,
        *,
        pending: Callable[[int], bool] = lambda sequence: False,
        failed: Callable[[Receipt], str | None] = lambda receipt: None,
        recent: RecentEntries | None = None,
    ) -> Lookup:
        """The answer of collector `us`."""
        return Lookup(
            self.app,
            self.settings,
            BOOK,
            collector="us",
            is_pending=pending,
            settled=lambda sequence: asyncio.get_running_loop().create_future(),
            why_failed=failed,
            recent=recent or RecentEntries(),
        )


@pytest.fixture
async def log(app_name: str, log_settings: LogSettings) -> Log:
    return await asyncio.to_thread(Log, shop(app_name), log_settings)


def text(collector: str, sequence: int, index: int = 0, **more: Any) -> str:
    receipt = {"stream": "clicks", "received_at": NOW, **more}
    return BOOK.write(Receipt(collector, sequence, index, **receipt))


async def refusal(look_up: Lookup, asked: str) -> int:
    with pytest.raises(Problem) as refused:
        await look_up(asked)
    return refused.value.status


async def test_an_event_is_found_by_its_number_in_any_partition_and_topic(log: Log) -> None:
    for sequence in (3, 5, 9):
        log.put("us", sequence)
    log.put("them", 4, partition=1)
    log.put("us", 4, 17, partition=1)
    log.put("us", 6, reason="id is missing")
    look_up = log.lookup()
    topic = stream_topic(log.app.name, "clicks")
    found = await look_up(text("us", 4, 17))
    assert found["state"] == "logged"
    assert (found["topic"], found["partition"], found["offset"]) == (topic, 1, 1)
    assert (found["id"], found["sequence"], found["index"]) == ("us-4.17", 4, 17)
    rejected = await look_up(text("us", 6))
    assert (rejected["state"], rejected["error"]) == ("rejected", "id is missing")
    assert rejected["topic"] == rejected_topic(log.app.name, "clicks")
    assert (await look_up(text("us", 6, rejected=True)))["offset"] == 0
    assert (await look_up(text("them", 4)))["id"] == "them-4.0"


async def test_an_event_with_a_known_offset_is_read_there(log: Log) -> None:
    log.put("them", 3)
    log.put("them", 4)
    look_up = log.lookup()
    assert (await look_up(text("them", 4, partition=0, offset=1)))["state"] == "logged"
    # Another event is there, or none: the topic was created again.
    assert await refusal(look_up, text("them", 4, partition=0, offset=0)) == 410
    assert await refusal(look_up, text("them", 5, partition=0, offset=2)) == 410


async def test_a_caller_without_permission_learns_nothing_about_the_event(
    log: Log,
) -> None:
    log.put("them", 3)

    def check(stream: str) -> None:
        raise Problem(403, stream)

    look_up = log.lookup(pending=lambda sequence: sequence == 7)
    for asked in (
        text("them", 3, partition=0, offset=0),
        text("them", 5, partition=0, offset=2),
        text("us", 7),
    ):
        with pytest.raises(Problem, match="clicks") as refused:
            await look_up(asked, check)
        assert refused.value.status == 403


async def test_an_event_still_in_a_journal_is_reported_as_journaled(log: Log) -> None:
    look_up = log.lookup(pending=lambda sequence: sequence == 7)
    ours = await look_up(text("us", 7, 2))
    assert (ours["state"], ours["collector"], ours["index"]) == ("journaled", "us", 2)
    assert "topic" not in ours
    # Another's is in its journal if it is not in the log, wherever its neighbours are.
    log.put("them", 8)
    assert (await look_up(text("them", 7)))["state"] == "journaled"
    assert (await look_up(text("them", 9)))["state"] == "journaled"


async def test_an_event_that_is_nowhere_is_reported_as_gone(log: Log) -> None:
    look_up = log.lookup()
    assert await refusal(look_up, text("us", 7)) == 410  # neither in our journal nor in the log
    long_ago = NOW - 30 * 24 * 3600 * 1000
    assert await refusal(look_up, text("them", 7, received_at=long_ago)) == 410


async def test_an_event_sent_late_from_the_failed_store_is_found(log: Log) -> None:
    why = {4: "the topic was full"}
    look_up = log.lookup(failed=lambda receipt: why.get(receipt.sequence))
    failed = await look_up(text("us", 4))
    assert (failed["state"], failed["error"]) == ("failed", "the topic was full")
    log.put("us", 5)
    log.put("us", 4)  # by `millstream failed retry`
    why.clear()
    assert (await look_up(text("us", 4)))["offset"] == 1


async def test_forged_and_garbled_receipts_are_unknown(log: Log) -> None:
    look_up = log.lookup()
    forged = Receipts(b"x" * 32).write(Receipt("us", 1, 0, "clicks", NOW))
    for asked in (forged, text("us", 1)[:-1], "", "l.clicks.0.1.2", "é" * 2000):
        assert await refusal(look_up, asked) == 404
    assert await refusal(look_up, text("us", 1, stream="elsewhere")) == 404


async def test_a_long_search_continues_with_the_next_request(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sequence in range(1, 6):
        log.put("us", sequence)
    look_up = log.lookup()
    assert (await look_up(text("us", 1)))["offset"] == 0  # Kafka is ready to be asked
    with monkeypatch.context() as short:
        short.setattr(lookup, "_SECONDS", 0.0)
        assert await refusal(look_up, text("us", 5)) == 503
        assert len(look_up._searches) == 1
    assert (await look_up(text("us", 5)))["offset"] == 4
    assert len(look_up._searches) == 0


async def test_the_steps_of_recent_events_are_timed(log: Log) -> None:
    recent = RecentEntries(most=10)
    recent.journaled(4, NOW + 5)
    recent.logged(4, NOW + 9, [RecordMetadata("t", 0, 0)])
    log.put("us", 4)
    found = await log.lookup(recent=recent)(text("us", 4))
    assert found["received_at"] < found["journaled_at"] < found["logged_at"]
    for sequence in range(5, 20):
        recent.journaled(sequence, NOW)
        recent.logged(sequence, NOW, [None])
    later = await log.lookup(recent=recent)(text("us", 4))
    assert "logged_at" not in later
    assert later["received_at"] == found["received_at"]


async def test_receipts_hold_across_restarts_and_collectors(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    app = shop(app_name)
    async with collect(app, log_settings, tmp_path / "one") as one:
        logged = (await one.post("clicks", click(1))).json()["receipts"][0]
        local = (await one.post("clicks", click(2), params={"ack": "local"})).json()["receipts"][0]
        mixed = problem(await one.post("notes", b'{"text": 1}'), 422)
        (rejected,) = (each["receipt"] for each in mixed["rejected"])  # type: ignore[attr-defined]
        answers = [(await one.http.get(f"/v1/receipts/{each}")).json() for each in (logged,)]
        assert answers[0]["received_at"] <= answers[0]["journaled_at"] <= answers[0]["logged_at"]
    altered = logged[:-1] + ("B" if logged.endswith("A") else "A")
    for home in ("one", "two"):
        async with collect(app, log_settings, tmp_path / home) as again:
            told = [
                (await again.http.get(f"/v1/receipts/{each}")).json()
                for each in (logged, local, rejected)
            ]
            assert [each["state"] for each in told] == ["logged", "logged", "rejected"]
            assert [each["offset"] for each in told] == [0, 1, 0]
            problem(await again.http.get(f"/v1/receipts/{altered}"), 404)
