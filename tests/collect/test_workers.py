"""Several collector processes on one port: senders and operators see one collector."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.collect.collector_processes import CollectorGroup, collector, collectors
from tests.collect.conftest import click, collect, headers, read_topic, shop, until
from tests.collect.counting_senders import pipeline

from millstream.collect.journal import Journal, JournalSettings
from millstream.collect.raw_message import RawMessage, encode
from millstream.connectors import KafkaTopicSource
from millstream.log.settings import LogSettings
from millstream.log.topic_names import audit_topic, stream_topic
from millstream.pipeline.app import App
from millstream.runtime.home import Home, is_alive
from millstream.values.report import ProcessReport

_THREE = f"app{uuid.uuid4().hex[:10]}"


@pytest.fixture(scope="module")
def three(
    log_settings: LogSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CollectorGroup]:
    with collectors(shop, _THREE, log_settings, tmp_path_factory.mktemp("home"), 3) as running:
        running.ready()
        yield running


@pytest.fixture
async def http(three: CollectorGroup) -> AsyncIterator[httpx.AsyncClient]:
    # Each request on a connection of its own, so that it meets another worker.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=three.ready(), limits=limits, timeout=30) as http:
        yield http


async def _post(http: httpx.AsyncClient, count: int) -> list[dict[str, object]]:
    """Send events, each on its own connection; the answers."""
    answers = []
    for number in range(count):
        response = await http.post("/v1/streams/clicks", content=click(number))
        assert response.status_code == 200, response.text
        answers.append(response.json())
    return answers


async def test_a_receipt_of_one_process_is_answered_by_all(http: httpx.AsyncClient) -> None:
    receipts = [answer["receipts"][0] for answer in await _post(http, 12)]  # type: ignore[index]
    collectors: Counter[str] = Counter()
    for receipt in receipts:
        answers = [(await http.get(f"/v1/receipts/{receipt}")).json() for _ in range(6)]
        assert {answer["state"] for answer in answers} == {"logged"}
        [collector] = {answer["collector"] for answer in answers}
        collectors[collector] += 1
        # Only the process that accepted it knows these.
        for known in (answer for answer in answers if "journaled_at" in answer):
            assert known["received_at"] <= known["journaled_at"] <= known["logged_at"]
    assert len(collectors) > 1, "the kernel gave all connections to one process"


async def test_metrics_are_of_all_processes_whichever_is_asked(http: httpx.AsyncClient) -> None:
    def accepted(text: str) -> list[tuple[str, int]]:
        name = "millstream_collect_accepted_total{"
        lines = [line for line in text.splitlines() if line.startswith(name)]
        return [(line.split('"')[1], int(line.split()[-1])) for line in lines if '"clicks"' in line]

    texts: list[str] = []

    async def all_answer(total: int = 0) -> bool:
        """Whether all processes are in the metrics, and have so many events in all."""
        texts.append((await http.get("/metrics")).text)
        counted = sum(count for _, count in accepted(texts[-1]))
        return "\nmillstream_collect_workers_answering 3\n" in texts[-1] and counted >= total

    await until(all_answer)
    # Each process publishes its counts every second.
    before = sum(count for _, count in accepted(texts[-1]))
    await _post(http, 9)
    for _ in range(6):
        await until(partial(all_answer, before + 9))
        text = texts[-1]
        now = accepted(text)
        assert [worker for worker, _ in now] == ["0", "1", "2"]
        assert text.count("# TYPE millstream_collect_accepted counter") == 1
        assert text.endswith("# EOF\n")
    assert sum(count for _, count in accepted(texts[-1])) == before + 9


async def test_a_killed_process_comes_back_under_its_name(
    three: CollectorGroup, http: httpx.AsyncClient, log_settings: LogSettings
) -> None:
    before = set(three.workers())
    assert len(before) == 3
    killed = min(before)
    os.kill(killed, signal.SIGKILL)

    async def states() -> list[str]:
        try:
            health = (await http.get("/health/ready")).json()
        except httpx.TransportError:  # this connection waited at the door of the dead one
            return []
        return [worker["state"] for worker in health["workers"]]

    async def all_ready() -> bool:
        pids = three.workers()
        return len(pids) == 3 and killed not in pids and await states() == ["ready"] * 3

    await until(all_ready)
    after = set(three.workers())
    assert before - after == {killed}
    assert len(after) == 3
    await _post(http, 6)

    async def all_reported() -> bool:
        topic = audit_topic(_THREE)
        records = await asyncio.to_thread(read_topic, log_settings, topic)
        reports = [
            msgspec.json.decode(record.value or b"", type=ProcessReport) for record in records
        ]
        starts = Counter(who for who, _ in {(each.instance, each.started_at) for each in reports})
        assert len(starts) <= 3
        return sorted(starts.values()) == [1, 1, 2]

    await until(all_reported)


async def test_a_silent_process_is_named_and_the_others_go_on(
    three: CollectorGroup, http: httpx.AsyncClient
) -> None:
    stopped = max(three.workers())
    os.kill(stopped, signal.SIGSTOP)
    try:

        async def named() -> bool:
            # Who is stopped still gets connections, and answers none.
            try:
                health = (await http.get("/health/ready", timeout=2)).json()
                metrics = (await http.get("/metrics", timeout=2)).text
            except httpx.TransportError:
                return False
            silent = [w for w in health["workers"] if w["state"] == "silent"]
            assert health["status"] == "ready"
            # Its last file counts as fresh for some seconds.
            return len(silent) == 1 and "\nmillstream_collect_workers_answering 2\n" in metrics

        await until(named)
    finally:
        os.kill(stopped, signal.SIGCONT)


async def test_status_names_a_silent_process(three: CollectorGroup) -> None:
    stopped = max(three.workers())
    os.kill(stopped, signal.SIGSTOP)
    try:

        def named() -> bool:
            # Who is stopped still gets connections, and answers none.
            command = [sys.executable, "-m", "millstream", "status", "--json"]
            answer = subprocess.run(
                [*command, "--home", str(three.home.path)], capture_output=True, text=True
            )
            assert answer.returncode == 1
            problems = json.loads(answer.stdout)["problems"]
            return any("it does not answer" in each for each in problems)

        await until(lambda: asyncio.to_thread(named), seconds=60)
    finally:
        os.kill(stopped, signal.SIGCONT)


async def test_it_announces_once_that_it_is_ready_and_stops_completely(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    home = Home(tmp_path / "home")
    with collectors(pipeline, app_name, log_settings, home.path, 3) as running:
        url = await asyncio.to_thread(running.ready)
        workers = running.workers()
        assert len(workers) == 3
        entries = home.running()
        assert {name: entry["url"] for name, entry in entries.items()} == {
            "collect": url,
            "collect-1": url,
            "collect-2": url,
        }
        assert {entry["pid"] for entry in entries.values()} == set(workers)
        async with httpx.AsyncClient(base_url=url) as http:
            # A connection that a sender keeps open does not hold up the end.
            response = await http.post("/v1/streams/counts", content=b'{"sender": "a", "n": 1}')
            assert response.status_code == 200
            assert await asyncio.to_thread(running.stop, signal.SIGINT) < 10
        assert running.process.returncode == 130
        assert not any(map(is_alive, workers))
        assert home.running() == {}
        assert running.output().count("collect ready on") == 1
        assert running.error() == ""


async def test_a_killed_parent_ends_its_processes_and_another_can_start_at_once(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    with collectors(pipeline, app_name, log_settings, tmp_path / "home", 2) as running:
        await asyncio.to_thread(running.ready)
        workers = running.workers()
        running.stop(signal.SIGKILL)
        with collectors(pipeline, app_name, log_settings, tmp_path / "home", 2) as next_one:
            await asyncio.to_thread(next_one.ready)
            assert not any(map(is_alive, workers))
            assert next_one.stop() < 10


async def test_an_error_at_the_start_is_printed_once(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    (tmp_path / "cert.pem").write_text("nonsense")
    files: dict[str, Any] = {
        "tls_certificate": str(tmp_path / "cert.pem"),
        "tls_key": str(tmp_path / "cert.pem"),
    }
    home = tmp_path / "home"
    with collectors(pipeline, app_name, log_settings, home, 3, **files) as running:
        error = await asyncio.to_thread(running.error)
        assert error.startswith("error: cannot start collect")
        assert error.count("error:") == 1
        assert "cert.pem" in error
        assert running.process.returncode == 1
        assert running.workers() == []


async def test_several_on_one_port_do_not_share_it_with_others(
    three: CollectorGroup, app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    port = int(three.ready().rpartition(":")[2])
    home = tmp_path / "home"
    with collectors(pipeline, app_name, log_settings, home, 2, port=port) as running:
        error = await asyncio.to_thread(running.error)
        assert f"cannot start collect on port {port}" in error
        assert "listens there" in error


async def test_two_collectors_of_one_number_are_refused(
    three: CollectorGroup, log_settings: LogSettings
) -> None:
    path = three.home.path
    with collector(shop, _THREE, log_settings, path) as running:
        assert "runs there already" in await asyncio.to_thread(running.error)


async def test_entries_of_processes_that_no_longer_exist_are_sent_once(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    identities = []
    for number in (0, 1, 2):
        journal = await Journal.open(tmp_path / "journal" / str(number), JournalSettings())
        for event in (click(number), click(number + 10)):
            _, durable = journal.append(
                encode(RawMessage("clicks", time.time_ns() // 10**6, event))
            )
            await durable
        identities.append(journal.identity)
        await journal.close()
    for _ in range(2):  # and not again at the next start
        async with collect(shop(app_name), log_settings, tmp_path) as running:

            async def all_sent() -> bool:
                health = (await running.http.get("/health/ready")).json()
                return bool(health["journal"]["pending_entries"] == 0)

            await until(all_sent)
            told = [headers(record) for record in await running.logged("clicks")]
            numbers = sorted((each["ce_collector"], each["ce_sequence"]) for each in told)
            assert numbers == sorted((each, n) for each in identities for n in "12")


def _mirrors(name: str) -> App:
    """Three streams, each read from its own topic."""
    app_name, bootstrap = name.split("/")
    app = App(app_name)
    for letter in "abc":
        source = KafkaTopicSource(bootstrap, f"{app_name}.from.{letter}")
        app.stream(letter, schema="n LONG NOT NULL", source=source)
    return app


async def _connected_sources(url: str, count: int) -> list[str]:
    """Wait for the samples of so many connected sources."""
    connected: list[str] = []

    async def all_connected() -> bool:
        async with httpx.AsyncClient(base_url=url) as http:
            lines = (await http.get("/metrics")).text.splitlines()
        connected[:] = [line for line in lines if "_source_connected{" in line]
        return len(connected) == count

    await until(all_connected)
    return connected


@pytest.mark.timeout(120)
async def test_sources_go_on_where_they_were_when_the_number_of_processes_changes(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    config: dict[str, Any] = {"bootstrap.servers": log_settings.bootstrap, "log_level": 0}
    topics = [NewTopic(f"{app_name}.from.{letter}", 1) for letter in "abc"]
    admin = AdminClient(config)
    for made in admin.create_topics(topics).values():
        await asyncio.to_thread(made.result, 30)
    producer = Producer(config)
    written = 0

    def logged(letter: str) -> list[int]:
        records = read_topic(log_settings, stream_topic(app_name, letter))
        return [json.loads(record.value or b"")["n"] for record in records]

    def are_logged() -> bool:
        return all(len(logged(letter)) >= written for letter in "abc")

    for workers in (1, 3, 1):
        for number in range(written, written + 5):
            for topic in topics:
                producer.produce(topic.topic, json.dumps({"n": number}))
        producer.flush(30)
        written += 5
        name = f"{app_name}/{log_settings.bootstrap}"
        home = tmp_path / "home"
        with (
            collectors(_mirrors, name, log_settings, home, workers)
            if workers > 1
            else collector(_mirrors, name, log_settings, home)
        ) as running:
            url = await asyncio.to_thread(running.ready)
            await until(are_logged, seconds=60)
            connected = await _connected_sources(url, 3)
            readers = Counter(line.partition('worker="')[2][:1] for line in connected)
            assert max(readers.values()) == -(-3 // workers)
            running.stop()
        for letter in "abc":
            assert logged(letter) == list(range(written)), (workers, letter)
