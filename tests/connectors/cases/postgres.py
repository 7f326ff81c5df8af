"""A database server behind a faulty proxy."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from tests.collect.recording_output import RecordingOutput
from tests.connectors.conformance_case import Case
from tests.connectors.postgres_replica import changes
from tests.connectors.postgres_server import PostgresServer
from tests.connectors.proxy import Proxy
from tests.wait_until import until

from millstream.connectors import PostgresSource

_PORTION = 4_000


class PostgresCase(Case):
    name = "postgres"
    service = "postgres"
    behind_unit = "bytes"
    why_no_hold = "the server's log stores what a reader has not read"

    async def start(self) -> None:
        self._server: PostgresServer = self.fixture("postgres")
        self._table = f"t{uuid.uuid4().hex[:12]}"
        await self._server.sql(f"CREATE TABLE {self._table} (n int PRIMARY KEY, pad text)")
        self._proxy = Proxy(self._server.port)
        await self._proxy.start()

    async def stop(self) -> None:
        await self._proxy.stop()
        await self._server.forget(self._table)
        await self._server.sql(f"DROP TABLE {self._table}")

    @property
    def source(self) -> PostgresSource:
        name = self._table
        url = self._server.url.replace(str(self._server.port), str(self._proxy.port))
        return PostgresSource(url, tables=name, publication=name, slot=name)

    async def send(self, numbers: Sequence[int]) -> None:
        rows = ", ".join(f"({number}, '')" for number in numbers)
        await self._server.sql(f"INSERT INTO {self._table} VALUES {rows}")

    async def pour(self, total: int) -> None:
        for first in range(0, total, _PORTION):
            end = min(first + _PORTION, total)
            await self._server.sql(
                f"INSERT INTO {self._table} SELECT n, repeat('x', 900)"
                f" FROM generate_series({first}, {end - 1}) n"
            )
            self.poured = end

    async def drop(self) -> None:
        self._proxy.cut()

    async def garbage(self) -> None:
        await self._server.sql(
            f"ALTER TABLE {self._table} ADD COLUMN odd text, ADD COLUMN number numeric",
            f"INSERT INTO {self._table} VALUES (-1, E'\\x01\"\\\\', repeat('y', 200000), 'NaN')",
            f"DELETE FROM {self._table}",
            "SELECT pg_logical_emit_message(true, 'x', 'not ours')",
        )
        self._proxy.inject(b"\xff" * 100)  # not a message

    async def stall(self) -> None:
        active = f"SELECT FROM pg_replication_slots WHERE slot_name = '{self._table}' AND active"
        await until(lambda: self._server.sql(active))
        self._proxy.stall()

    def numbers(self, output: RecordingOutput) -> list[int]:
        rows = [change["after"] for change in changes(output) if change["after"]]
        return [row["n"] for row in rows if row["n"] >= 0]
