"""The PostgreSQL source against a real server: the snapshot, and the changes after it."""

from __future__ import annotations

import asyncio
import json
import random
import re
import tracemalloc
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.collect.recording_output import FillingOutput, RecordingOutput
from tests.connectors.conformance_case import running
from tests.connectors.postgres_replica import Replica, changes, envelopes
from tests.connectors.postgres_server import PostgresServer
from tests.wait_until import until

from millstream.collect.settings import CollectSettings
from millstream.connectors import PostgresSource
from millstream.connectors.postgres.protocol.message_codec import lsn_number
from millstream.connectors.postgres.reader import PostgresReader

SETTINGS = CollectSettings(
    reconnect_first=0.02, reconnect_most=0.05, ping_after=1.0, ping_timeout=20.0
)


class Database:
    """Two tables, `<name>` and `<name>_items`, and their source, for one test."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.name = name
        self.table, self.items = f"public.{name}", f"public.{name}_items"

    def source(self, tables: str = "", **more: Any) -> PostgresSource:
        return PostgresSource(
            **{"url": self.server.url, "tables": tables or self.name, "slot": self.name}
            | {"publication": self.name}
            | more
        )

    def reader(self, tables: str = "", **more: Any) -> PostgresReader:
        return PostgresReader(self.name, self.source(tables, **more), SETTINGS)

    async def sql(self, *statements: str) -> list[list[str | None]]:
        """Run statements; T and I are replaced by the two tables."""
        named = {"T": self.table, "I": self.items}
        written = [re.sub(r"\b[TI]\b", lambda it: named[it[0]], each) for each in statements]
        return await self.server.sql(*written)

    async def rows(self, table: str = "T") -> list[dict[str, Any]]:
        """The rows of the table, by id."""
        found = await self.sql(f"SELECT to_json(t) FROM {table} t ORDER BY id")
        return [json.loads(row[0] or "") for row in found]

    async def confirmed(self) -> int:
        """The LSN that was confirmed to the server."""
        rows = await self.sql(
            f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{self.name}'"
        )
        return lsn_number(rows[0][0] or "") if rows else 0

    async def streaming(self) -> bool:
        """Whether a reader follows the changes (a slot is also active while it is created)."""
        return bool(
            await self.sql(
                "SELECT FROM pg_replication_slots JOIN pg_stat_replication ON pid = active_pid"
                f" WHERE slot_name = '{self.name}' AND state = 'streaming'"
            )
        )


@pytest.fixture
async def database(postgres: PostgresServer) -> AsyncIterator[Database]:
    database = Database(postgres, f"t{uuid.uuid4().hex[:12]}")
    await database.sql(
        "CREATE TABLE T (id int PRIMARY KEY, n int, note text)",
        "CREATE TABLE I (id int PRIMARY KEY, n int, note text)",
    )
    yield database
    await postgres.forget(database.name)
    await database.sql("DROP TABLE IF EXISTS T, I")


def ops(output: RecordingOutput) -> list[tuple[str, Any, Any]]:
    return [(change["op"], change["before"], change["after"]) for change in changes(output)]


def count(output: RecordingOutput) -> int:
    return len(changes(output))


async def test_existing_rows_come_first_then_every_change(database: Database) -> None:
    await database.sql("INSERT INTO T VALUES (1, 10, 'a'), (2, 20, NULL)")
    reader, output = database.reader(), RecordingOutput()
    async with running(reader, output):
        await until(database.streaming)
        await database.sql(
            "INSERT INTO T VALUES (3, 30, 'ü\"\\')",
            "UPDATE T SET n = 11 WHERE id = 1",
            "UPDATE T SET id = 4 WHERE id = 2",
            "DELETE FROM T WHERE id = 3",
            "TRUNCATE T",
        )
        await until(lambda: count(output) == 7)
    assert ops(output) == [
        ("snapshot", None, {"id": 1, "n": 10, "note": "a"}),
        ("snapshot", None, {"id": 2, "n": 20, "note": None}),
        ("insert", None, {"id": 3, "n": 30, "note": 'ü"\\'}),
        ("update", {"id": 1}, {"id": 1, "n": 11, "note": "a"}),
        ("update", {"id": 2}, {"id": 4, "n": 20, "note": None}),
        ("delete", {"id": 3}, None),
        ("truncate", None, None),
    ]
    assert [change["key"] for change in changes(output)] == [
        *("[1]", "[2]", "[3]", "[1]", "[4]", "[3]", None)
    ]
    places = [lsn_number(change["lsn"]) for change in changes(output)]
    assert places == sorted(places)
    assert reader.state.received == 7


async def test_an_event_s_id_is_slot_lsn_and_index(database: Database) -> None:
    reader, output = database.reader(), RecordingOutput()
    async with running(reader, output):
        await until(database.streaming)
        await database.sql("INSERT INTO T SELECT i, i FROM generate_series(1, 3) i")
        await until(lambda: count(output) == 3)
    events = envelopes(output.messages)
    lsn, xid = events[0]["data"]["lsn"], events[0]["data"]["xid"]
    assert [event["id"] for event in events] == [f"{database.name}/{lsn}/{i}" for i in range(3)]
    assert {event["data"]["xid"] for event in events} == {xid}
    assert {event["source"] for event in events} == {database.source().address}
    assert {event["type"] for event in events} == {"postgres.insert"}
    assert {event["subject"] for event in events} == {database.table}
    assert {event["time"] for event in events} == {events[0]["data"]["committed_at"]}
    assert set(output.content_types) == {"application/cloudevents-batch+json"}


async def test_before_is_the_whole_row_with_replica_identity_full(database: Database) -> None:
    await database.sql("ALTER TABLE T REPLICA IDENTITY FULL", "INSERT INTO T VALUES (1, 10, 'a')")
    reader, output = database.reader(), RecordingOutput()
    async with running(reader, output):
        await until(database.streaming)
        await database.sql("UPDATE T SET n = 11", "DELETE FROM T")
        await until(lambda: count(output) == 3)
    assert ops(output)[1:] == [
        ("update", {"id": 1, "n": 10, "note": "a"}, {"id": 1, "n": 11, "note": "a"}),
        ("delete", {"id": 1, "n": 11, "note": "a"}, None),
    ]
    assert [change["key"] for change in changes(output)] == ["[1]"] * 3


@pytest.mark.parametrize("full", [False, True])
async def test_an_unchanged_large_value_is_named_or_copied_from_the_old_row(
    database: Database, full: bool
) -> None:
    await database.sql(
        "ALTER TABLE T ALTER note SET STORAGE EXTERNAL",
        "INSERT INTO T VALUES (1, 10, repeat('x', 100000))",
        f"ALTER TABLE T REPLICA IDENTITY {'FULL' if full else 'DEFAULT'}",
    )
    reader, output = database.reader(), RecordingOutput()
    async with running(reader, output):
        await until(database.streaming)
        await database.sql("UPDATE T SET n = 11")
        await until(lambda: count(output) == 2)
    change = changes(output)[1]
    if full:
        assert change["after"] == {"id": 1, "n": 11, "note": "x" * 100_000}
        assert "unchanged" not in change
    else:
        assert change["after"] == {"id": 1, "n": 11}
        assert change["unchanged"] == ["note"]
    assert Replica().apply(output.messages).rows(database.table) == await database.rows()


async def write(database: Database, stop: asyncio.Event, seed: int, ids: range) -> int:
    """Change rows of both tables in transactions of any size, until stopped."""
    chance = random.Random(seed)
    present: dict[str, set[int]] = {database.table: set(), database.items: set()}
    made = 0
    async with database.server.session() as session:
        while not stop.is_set():
            statements = ["BEGIN"]
            for _ in range(chance.choice([1, 1, 2, 5, 40])):
                table = chance.choice([database.table, database.items])
                number, rows = chance.choice(ids), present[table]
                if number not in rows:
                    statements.append(f"INSERT INTO {table} VALUES ({number}, {made}, 'n{made}')")
                    rows.add(number)
                elif chance.random() < 0.3:
                    statements.append(f"DELETE FROM {table} WHERE id = {number}")
                    rows.remove(number)
                else:
                    statements.append(f"UPDATE {table} SET n = {made} WHERE id = {number}")
                made += 1
            await session.query("; ".join([*statements, "COMMIT"]))
            await asyncio.sleep(0)
    return made


async def caught_up(database: Database, output: RecordingOutput, mark: int) -> None:
    """Wait until a row that is written now has been read."""
    await database.sql(f"INSERT INTO T VALUES ({mark}, 0, 'mark')")
    needle = f'"after":{{"id":{mark},'.encode()
    await until(lambda: any(needle in message for message in output.messages), seconds=60)


async def test_a_snapshot_during_changes_misses_and_duplicates_nothing(
    database: Database,
) -> None:
    await database.sql(
        "INSERT INTO T SELECT i, i FROM generate_series(5000, 9999) i",
        "INSERT INTO I SELECT i, i FROM generate_series(5000, 9999) i",
    )
    both = f"{database.name}, {database.items}"
    stop, output = asyncio.Event(), RecordingOutput()
    writers = [
        asyncio.create_task(write(database, stop, seed, range(seed * 1000, seed * 1000 + 50)))
        for seed in (1, 2)
    ]
    reader = database.reader(both)
    async with running(reader, output):
        await until(lambda: count(output) > 10_500)
        stop.set()
        made = await asyncio.gather(*writers)
        await caught_up(database, output, 99_999)
    replica = Replica().apply(output.messages)  # fails if a row is inserted twice
    assert min(made) > 0
    assert not replica.repeated
    assert replica.rows(database.table) == await database.rows("T")
    assert replica.rows(database.items) == await database.rows("I")


async def test_an_interrupted_snapshot_is_read_again_after_a_truncate(database: Database) -> None:
    await database.sql(
        "INSERT INTO T SELECT i, i FROM generate_series(1, 2000) i",
        "INSERT INTO I SELECT i, i FROM generate_series(1, 5000) i",
    )
    both = f"{database.name}, {database.items}"
    output = FillingOutput(6)
    async with running(database.reader(both), output):
        # The second table is being read: the first one need not be read again.
        await until(lambda: output.full)
    assert 2000 < count(output) < 7000
    await database.sql(
        "DELETE FROM I WHERE id < 1000",
        "UPDATE I SET n = -1 WHERE id < 2000",
        "INSERT INTO I VALUES (7000, 1)",
        "UPDATE T SET n = -2 WHERE id = 7",
    )
    output.empty()
    async with running(database.reader(both), output):
        await caught_up(database, output, 99_999)
    replica = Replica().apply(output.messages)
    assert replica.rows(database.table) == await database.rows("T")
    assert replica.rows(database.items) == await database.rows("I")
    restarted = [change["table"] for change in changes(output) if change["op"] == "truncate"]
    assert restarted == [database.items]
    assert not replica.repeated


async def test_without_a_snapshot_only_changes_come(database: Database) -> None:
    await database.sql("INSERT INTO T VALUES (1, 10, 'a')")
    output = RecordingOutput()
    async with running(database.reader(snapshot=False), output):
        await until(database.streaming)
        await database.sql("INSERT INTO T VALUES (2)")
        await until(lambda: count(output) == 1)
    assert [change["op"] for change in changes(output)] == ["insert"]


async def test_an_added_table_gets_a_snapshot_and_the_others_continue(
    database: Database,
) -> None:
    await database.sql("INSERT INTO T VALUES (1)", "INSERT INTO I VALUES (1), (2)")
    output = RecordingOutput()
    async with running(database.reader(), output):
        await until(lambda: count(output) == 1)
        await until(database.streaming)
    await database.sql("INSERT INTO T VALUES (2)", "INSERT INTO I VALUES (3)")
    async with running(database.reader(f"{database.name}, {database.items}"), output):
        await caught_up(database, output, 99)
    replica = Replica().apply(output.messages)
    assert replica.rows(database.table) == await database.rows("T")
    assert replica.rows(database.items) == await database.rows("I")
    assert sum(change["op"] == "snapshot" for change in changes(output)) == 4


async def test_added_and_dropped_columns_are_followed(database: Database) -> None:
    output = RecordingOutput()
    async with running(database.reader(), output):
        await until(database.streaming)
        await database.sql(
            "INSERT INTO T VALUES (1, 1, 'a')",
            "ALTER TABLE T ADD COLUMN ok boolean DEFAULT true",
            "ALTER TABLE T RENAME COLUMN note TO words",
            "ALTER TABLE T ALTER n TYPE text",
            "INSERT INTO T VALUES (2, '2', 'b')",
            "ALTER TABLE T DROP COLUMN words",
            "INSERT INTO T VALUES (3, '3')",
        )
        await until(lambda: count(output) == 3)
    assert [change["after"] for change in changes(output)] == [
        {"id": 1, "n": 1, "note": "a"},
        {"id": 2, "n": "2", "words": "b", "ok": True},
        {"id": 3, "n": "3", "ok": True},
    ]


async def test_nothing_is_acknowledged_before_it_is_on_disk(database: Database) -> None:
    reader, output = database.reader(), RecordingOutput()
    async with running(reader, output):
        await until(database.streaming)
        await database.sql("INSERT INTO T VALUES (1)")
        await until(lambda: output.bookmark is not None)
        stored = json.loads(output.bookmark or b"")["lsn"]
        await until(async_at_least(database.confirmed, stored))
        output.disk.clear()
        await database.sql("INSERT INTO T VALUES (2)")
        await until(lambda: count(output) == 2)
        offered = json.loads(output.bookmarks[-1] or b"")["lsn"]
        # Other traffic makes the server request several replies.
        for number in range(2):
            before = reader.state.behind
            await database.sql(f"INSERT INTO I VALUES ({number})")
            await until(lambda: reader.state.behind not in (None, before))  # noqa: B023
            assert stored <= await database.confirmed() < offered
        output.disk.set()
        await until(async_at_least(database.confirmed, offered))


def async_at_least(measure: Callable[[], Any], least: int) -> Callable[[], Any]:
    async def reached() -> bool:
        return bool(await measure() >= least)

    return reached


async def test_the_server_may_delete_changes_of_other_tables(database: Database) -> None:
    output = RecordingOutput()
    reader = database.reader()
    async with running(reader, output):
        await until(database.streaming)
        await database.sql("INSERT INTO I SELECT i FROM generate_series(1, 1000) i")
        [[end]] = await database.sql("SELECT pg_current_wal_lsn()")
        await until(async_at_least(database.confirmed, lsn_number(end or "")))
        await until(lambda: reader.state.behind is not None and reader.state.behind < 1000)
        assert reader.state.behind_unit == "bytes"
    assert output.messages == []


async def test_a_reader_that_waits_long_for_the_output_keeps_its_session(
    database: Database,
) -> None:
    role = f"{database.name}_quick"
    await database.sql(
        f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD 'p'",
        f"ALTER ROLE {role} SET wal_sender_timeout = '2s'",
    )
    output = RecordingOutput()
    reader = database.reader(url=database.server.url_of(role, "p"))
    async with running(reader, output):
        await until(database.streaming)
        output.open.clear()
        # More than all buffers hold, so the server cannot send more.
        await database.sql(
            "INSERT INTO T SELECT i, i, repeat('x', 900) FROM generate_series(1, 9000) i"
        )
        await asyncio.sleep(3.0)
        assert reader.state.reconnects == 0
        output.open.set()
        await caught_up(database, output, 99_999)
    assert count(output) == 9001
    await until(
        lambda: database.server.sql(f"DROP OWNED BY {role}", f"DROP ROLE {role}", "SELECT 1")
    )


async def test_a_huge_transaction_needs_little_memory(database: Database) -> None:
    total = 12_000  # about 12 MB

    class Forgetful(RecordingOutput):
        seen = 0

        async def offer(self, message: bytes, **more: Any) -> asyncio.Future[None]:
            self.seen += message.count(b'"specversion"')
            assert len(message) < 300_000
            self.bookmark = more["bookmark"]
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done

    output = Forgetful()
    async with running(database.reader(), output):
        await until(database.streaming)
        await database.sql(
            "INSERT INTO T SELECT i, i, repeat('x', 700) FROM generate_series(1, 1000) i"
        )
        await until(lambda: output.seen == 1000)
        tracemalloc.start()
        try:
            await database.sql(
                "INSERT INTO T SELECT i, i, repeat('x', 700)"
                f" FROM generate_series(2000, {1999 + total}) i"
            )
            await until(lambda: output.seen == 1000 + total, seconds=60)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 4_000_000


async def test_an_interrupted_transaction_is_resumed(database: Database) -> None:
    output = FillingOutput(5)
    async with running(database.reader(), output):
        await until(database.streaming)
        await database.sql("INSERT INTO T SELECT i, i FROM generate_series(1, 20000) i")
        await until(lambda: output.full)
    assert 1000 < count(output) < 19_000
    output.empty()
    async with running(database.reader(), output):
        await caught_up(database, output, 99_999)
    replica = Replica().apply(output.messages)
    assert not replica.repeated
    assert replica.rows(database.table) == await database.rows()


async def test_a_second_reader_waits_and_takes_over(database: Database) -> None:
    first, second, output = database.reader(), database.reader(), RecordingOutput()
    async with running(first, output):
        await until(database.streaming)
        async with running(second, output):
            await until(lambda: "in use by another reader" in second.state.error)
            await database.sql("INSERT INTO T VALUES (1)")
            await until(lambda: count(output) == 1)
            assert second.state.received == 0
    async with running(second, output):
        await caught_up(database, output, 2)
    assert Replica().apply(output.messages).rows(database.table) == await database.rows()
