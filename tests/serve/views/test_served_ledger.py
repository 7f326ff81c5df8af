"""A view's ledger: every entry that was committed, once and in order, on every transport."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer, TopicPartition
from tests.serve.pipeline import SECONDS, Pipeline, events, following, socket

from millstream.client import Change, Client, Snapshot
from millstream.client.backoff import Backoff
from millstream.log.connection import admin, client_config
from millstream.log.settings import LogSettings
from millstream.log.topic_names import ledger_topic
from millstream.serve.service import Server
from millstream.serve.views import on_demand
from millstream.values.ledger_entry import Amount, LedgerEntry, encode, sums

LEDGER = "/v1/views/per_minute/ledger"
Row = dict[str, Any]


class Books:
    """Writes the ledger of per_minute as `analyze` does: in transactions, by key."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.topic = ledger_topic(pipeline.app.name, "per_minute")
        self.entered: list[LedgerEntry] = []
        self._writer = Producer(client_config(pipeline.log, transactional_id=self.topic))
        self._writer.init_transactions(SECONDS)

    def enter(self, *amounts: Amount, minute: int | None = None) -> None:
        """A transaction with an entry each; every other one of them goes to partition 1."""
        with self.writing(*amounts, minute=minute):
            pass

    @contextmanager
    def writing(self, *amounts: Amount, minute: int | None = None) -> Iterator[None]:
        """The same; committed at the end."""
        self._writer.begin_transaction()
        made = [self._entry(len(self.entered) + i, n, minute) for i, n in enumerate(amounts)]
        for entry in made:
            self._write(entry)
        self._writer.flush(SECONDS)
        yield
        self._writer.commit_transaction(SECONDS)
        self.entered += made

    def abort(self, amount: Amount) -> None:
        self._writer.begin_transaction()
        self._write(self._entry(999, amount, None))
        self._writer.flush(SECONDS)
        self._writer.abort_transaction(SECONDS)

    def _write(self, entry: LedgerEntry) -> None:
        key = json.dumps(entry.key)
        self._writer.produce(self.topic, encode(entry), key, _partition(entry.key))

    def _entry(self, number: int, amount: Amount, minute: int | None) -> LedgerEntry:
        start = f"2026-01-01T12:{number % 60 if minute is None else minute:02}:00.000Z"
        key = [{"start": start, "end": start.replace(":00.", ":59.")}]
        at = f"2026-01-01T13:00:00.{number:03}Z"
        return LedgerEntry(f"{number:03}", key, "assertion", {"n": amount}, [], at)


def _partition(key: list[Any]) -> int:
    return int(key[0]["start"][14:16]) % 2


def in_order(rows: list[Row]) -> list[list[Row]]:
    """The entries of each partition, as they came."""
    return [[row for row in rows if _partition(row["key"]) == p] for p in (0, 1)]


@pytest.fixture
def pipeline(log_settings: LogSettings, app_name: str) -> Pipeline:
    return Pipeline(app_name, log_settings.model_copy(update={"partitions": 2}))


@pytest.fixture
def books(pipeline: Pipeline) -> Books:
    return Books(pipeline)


def expected(books: Books) -> list[list[Row]]:
    return in_order([json.loads(encode(entry)) for entry in books.entered])


async def by_poll(http: httpx.AsyncClient, **asked: str) -> list[Row]:
    """All entries, page by page, each with the position after its page."""
    found: list[Row] = []
    while True:
        answer = await http.get(LEDGER, params={"wait": "0", **asked})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert "gap" not in page
        if not page["changes"]:
            return found
        found += [change["row"] for change in page["changes"]]
        asked["after"] = page["position"]


async def by_socket(server: Server, count: int, **asked: str) -> list[Row]:
    """So many messages of a subscription."""
    async with socket(server) as client:
        first = await client.subscribe(ledger="per_minute", **asked)
        return [first, *[await client.next() for _ in range(count - 1)]]


async def by_events(http: httpx.AsyncClient, count: int) -> list[Row]:
    """So many server-sent events."""
    async with events(http, LEDGER) as stream:
        return [await following(stream) for _ in range(count)]


async def test_every_transport_gives_the_same_entries_and_only_committed_ones(
    pipeline: Pipeline, books: Books, server: Server, http: httpx.AsyncClient
) -> None:
    books.enter(1, 2, 3)
    books.abort(100)
    books.enter(Decimal("0.1"), Decimal("12345678901234567890.01"))
    with books.writing(4, 5):
        # Of what follows nobody may see anything yet.
        for messages in (await by_socket(server, 6), await by_events(http, 6)):
            assert (messages[0]["type"], messages[0]["rows"]) == ("snapshot", [])
            assert messages[0]["ledger"] == "per_minute"
            assert in_order([message["row"] for message in messages[1:]]) == expected(books)
        assert in_order(await by_poll(http)) == expected(books)
    for messages in (await by_socket(server, 8), await by_events(http, 8)):
        assert in_order([message["row"] for message in messages[1:]]) == expected(books)
    raw = (await http.get(LEDGER, params={"wait": "0"})).text
    assert '"n":12345678901234567890.01' in raw, "to the last digit"
    command = ["tail", "per_minute", "--ledger", "--json", "--url", server.url, "-n", "7"]
    tail = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "millstream", *command), stdout=subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(tail.communicate(), SECONDS)
    assert b'"n":12345678901234567890.01' in out
    assert in_order([json.loads(line)["row"] for line in out.splitlines()]) == expected(books)
    newest = (await http.get(LEDGER, params={"limit": "2"})).json()
    assert {row["row"]["id"] for row in newest["rows"]} == {"005", "006"}


@pytest.mark.parametrize("held", [1, 2, 500])
async def test_a_client_can_continue_from_every_position(
    pipeline: Pipeline, books: Books, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 1 or 2 offsets in memory the rest is read from Kafka, up to the end of a transaction."""
    monkeypatch.setattr(on_demand, "_NEWEST", held)
    for n in range(12):
        books.enter(n)
        if n % 5 == 4:
            books.abort(n)
    async with pipeline.server() as one, pipeline.server() as other:
        messages = await by_socket(one, 13)
        positions = [message["position"] for message in messages]
        seen = [message["row"] for message in messages[1:]]
        assert in_order(seen) == expected(books)
        async with httpx.AsyncClient(base_url=other.url, timeout=SECONDS) as http:
            for number, position in enumerate(positions):
                rest = await by_poll(http, after=position)
                have = {row["id"] for row in seen[:number]}
                missing = [
                    [row for row in part if row["id"] not in have] for part in expected(books)
                ]
                assert in_order(rest) == missing, f"after {position}"


async def test_a_filter_can_use_the_names_of_key_columns_and_amounts(
    books: Books, server: Server, http: httpx.AsyncClient
) -> None:
    books.enter(*range(10))
    late = "key.window.start >= '2026-01-01T12:03:00Z' AND amounts.n < 6 AND kind = 'assertion'"
    assert {row["id"] for row in await by_poll(http, where=late)} == {"003", "004", "005"}
    (picked,) = await by_poll(http, where="id = '004'", select="key.window.start,amounts.n")
    assert picked == {"key.window.start": "2026-01-01T12:04:00.000Z", "amounts.n": 4}
    wrong = await http.get(LEDGER, params={"where": "key.page = 'a'"})
    assert wrong.status_code == 400
    assert "page" in wrong.json()["detail"]


async def test_an_unavailable_position_gives_a_gap_and_the_whole_ledger(
    pipeline: Pipeline, books: Books, server: Server, http: httpx.AsyncClient
) -> None:
    books.enter(1, 2, 3, 4)
    gap, snapshot, *rest = await by_socket(server, 6, after="another:0=1")
    assert (gap["type"], snapshot["type"], snapshot["rows"]) == ("gap", "snapshot", [])
    assert in_order([message["row"] for message in rest]) == expected(books)
    kafka = admin(pipeline.log)  # must exist until the answers have come
    for future in kafka.delete_records([TopicPartition(books.topic, 0, 1)]).values():
        future.result(SECONDS)
    async with pipeline.server() as fresh, Client(fresh.url) as client:
        found = await client.ledger("per_minute", after=snapshot["position"])
        assert "does not hold" in (found.gap or "")
        assert {entry.id for entry in found.entries} == {"001", "002", "003"}


async def test_the_error_for_a_view_without_ledger_says_what_to_do(
    server: Server, http: httpx.AsyncClient
) -> None:
    unknown = await http.get("/v1/views/per_minut/ledger")
    assert unknown.status_code == 404
    assert "did you mean 'per_minute'?" in unknown.json()["detail"]
    without = await http.get("/v1/views/by_city/ledger")
    assert without.status_code == 404
    detail = without.json()["detail"]
    assert "view by_city has no ledger; views with one: per_minute" in detail
    assert "ledger=['amount column']" in detail
    async with socket(server) as client:
        refused = await client.subscribe(ledger="by_city")
        assert refused["type"] == "error"
        assert refused["detail"] == detail
        both = await client.subscribe(view="by_city", ledger="per_minute")
        assert "either a view, a stream, a view's ledger" in both["detail"]
    paths = (await http.get("/v1/openapi.json")).json()["paths"]
    assert LEDGER in paths
    assert "/v1/views/by_city/ledger" not in paths


PIPELINE = """
from millstream import App

app = App("{name}")
app.stream("rsvps", schema="id LONG NOT NULL, city STRING, mtime TIMESTAMP", key="id")
app.view(
    "per_minute",
    key=["window"],
    ledger=["n"],
    sql="SELECT window(mtime, '1 minute') AS window, count(*) AS n FROM rsvps GROUP BY 1",
)
"""


@contextmanager
def serving(pipeline: Pipeline, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""
    file = folder / "pipeline.py"
    file.write_text(PIPELINE.format(name=pipeline.app.name))
    settings = (f"log.bootstrap={pipeline.log.bootstrap}", "log.partitions=2", "serve.port=0")
    command = [sys.executable, "-m", "millstream", "serve", str(file), "--home", str(folder / "h")]
    command += [part for setting in settings for part in ("--set", setting)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = next(line.split()[-1] for line in process.stdout if "serve ready on" in line)
            yield process, url
        finally:
            process.kill()


async def test_a_clients_sum_is_right_after_a_server_is_killed(
    pipeline: Pipeline, books: Books, tmp_path: Path
) -> None:
    books.enter(Decimal("0.1"), Decimal("0.2"), minute=0)
    backoff = Backoff(first=0.01, longest=0.1)
    with serving(pipeline, tmp_path) as (process, url):
        async with (
            pipeline.server() as second,
            Client(url, second.url, backoff=backoff) as client,
            client.changes(ledger="per_minute") as changes,
        ):
            assert isinstance(await anext(changes), Snapshot)
            got = [await anext(changes) for _ in range(2)]
            os.kill(process.pid, signal.SIGKILL)
            books.enter(Decimal("0.3"), 7, minute=0)
            got += [await anext(changes) for _ in range(2)]
            rows = [message.row for message in got if isinstance(message, Change) and message.row]
            assert [row["id"] for row in rows] == ["000", "001", "002", "003"]
            assert sum(row["amounts"]["n"] for row in rows) == Decimal("7.6")
            whole = await client.ledger("per_minute")
            ((_, total),) = sums(whole.entries).values()
            assert total == {"n": Decimal("7.6")}
            assert whole.position == changes.position
            assert (await client.ledger("per_minute", after=whole.position)).entries == []
