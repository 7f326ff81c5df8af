"""A session with a PostgreSQL server: login, queries, streaming."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

from millstream.connectors.postgres.protocol.address import Address, connect
from millstream.connectors.postgres.protocol.auth import MECHANISM, Scram, md5
from millstream.connectors.postgres.protocol.message_codec import (
    ResultColumn,
    ServerError,
    columns,
    cstring,
    error,
    packet,
    startup,
    values,
)
from millstream.connectors.postgres.protocol.message_transport import LARGEST, MessageTransport
from millstream.connectors.reading.reconnecting_reader import ConnectionLost

ResultRow = list[bytes | None]

# The text format of values depends on these; `value_codec` expects exactly this format.
_SESSION = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "standard_conforming_strings": "on",
    "statement_timeout": "0",  # a snapshot may take long
    "idle_in_transaction_session_timeout": "0",
    "application_name": "millstream",
}


class Session:
    """One session. Only `transport.send` may be called from several tasks at once."""

    def __init__(self, transport: MessageTransport, address: Address, *, encrypted: bool) -> None:
        self.transport = transport
        self.backend_pid = 0
        self._address = address
        self._encrypted = encrypted

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, address: Address, *, seconds: float, replication: bool = False
    ) -> AsyncIterator[Session]:
        """A session after login, closed at the end. ConnectionLost or OSError if it fails."""
        transport: MessageTransport | None = None
        try:
            async with asyncio.timeout(seconds):
                transport, encrypted = await connect(address)
                connection = cls(transport, address, encrypted=encrypted)
                await connection._log_in(replication=replication)
            transport.largest = LARGEST
            yield connection
        except TimeoutError:
            raise ConnectionLost("the server does not answer") from None
        finally:
            if transport is not None:
                await transport.close()

    async def query(self, sql: str) -> list[ResultRow]:
        """All rows of a short result."""
        return [row async for _, row in self.rows(sql)]

    async def rows(self, sql: str) -> AsyncIterator[tuple[list[ResultColumn], ResultRow]]:
        """Each row of a result of any length, with backpressure to the server."""
        self.transport.send(packet(b"Q", cstring(sql)))
        described: list[ResultColumn] = []
        failed: ServerError | None = None
        while True:
            kind, payload = await self.receive()
            match chr(kind):
                case "T":
                    described = columns(payload)
                case "D":
                    yield described, values(payload)
                case "E":
                    failed = error(payload)
                case "Z":
                    break
                case "C" | "I":
                    pass
                case other:
                    raise ConnectionLost(f"the server answered a query with the message {other!r}")
        if failed is not None:
            raise failed

    async def start(self, command: str) -> None:
        """Begin to stream in both directions (START_REPLICATION)."""
        self.transport.send(packet(b"Q", cstring(command)))
        kind, payload = await self.receive()
        if kind == ord("E"):
            raise error(payload)
        if kind != ord("W"):
            raise ConnectionLost(
                f"the server answered START_REPLICATION with the message {chr(kind)!r}"
            )

    async def receive(self) -> tuple[int, bytes]:
        """The next message that is not a notice."""
        while True:
            kind, payload = await self.transport.message()
            if kind not in b"NSA":
                return kind, payload

    async def _log_in(self, *, replication: bool) -> None:
        named = {"user": self._address.user, "database": self._address.database}
        wanted = {"replication": "database"} if replication else {}
        self.transport.send(startup(named | wanted | _SESSION))
        scram = Scram(self._address.password)
        while True:
            kind, payload = await self.receive()
            match chr(kind):
                case "R":
                    await self._authenticate(payload, scram)
                case "E":
                    raise error(payload)
                case "Z":
                    return
                case "K":
                    self.backend_pid = struct.unpack_from("!i", payload)[0]
                case other:
                    raise ConnectionLost(
                        f"the server answered the login with the message {other!r}"
                    )

    async def _authenticate(self, payload: bytes, scram: Scram) -> None:
        method, rest = struct.unpack_from("!i", payload)[0], payload[4:]
        match method:
            case 0:
                pass
            case 3:
                if not self._encrypted and not self._address.local:
                    raise ConnectionLost(
                        "the server asks for the password in clear on an unencrypted connection; "
                        "add ?sslmode=require to the url, or use SCRAM on the server"
                    )
                self._answer(cstring(self._address.password))
            case 5:
                self._answer(cstring(md5(self._address.user, self._address.password, rest[:4])))
            case 10:
                if MECHANISM.encode() not in rest.split(b"\0"):
                    raise ConnectionLost(
                        "the server offers no way of logging in that is known here"
                    )
                first = scram.first()
                self._answer(cstring(MECHANISM) + struct.pack("!i", len(first)) + first)
            case 11:
                self._answer(await scram.answer(rest))
            case 12:
                scram.check(rest)
            case _:
                raise ConnectionLost(
                    f"the server asks for authentication of kind {method}, which is not known "
                    "here; allow scram-sha-256, md5 or password for us in pg_hba.conf"
                )

    def _answer(self, payload: bytes) -> None:
        self.transport.send(packet(b"p", payload))
