"""The address of a PostgreSQL server, and connecting to it: TCP, TLS or a Unix socket."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from millstream.connectors.postgres.protocol.message_codec import SSL_REQUEST
from millstream.connectors.postgres.protocol.message_transport import MessageTransport
from millstream.connectors.reading.reconnecting_reader import ConnectionLost


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of a postgresql:// URL."""

    host: str  # a folder's path means a Unix socket in it
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    ssl_mode: str
    root_certificate: str

    @classmethod
    def of(cls, url: str) -> Address:
        """The parts of a URL that `PostgresSource.problem` has accepted."""
        parts = urlsplit(url)
        options = {name: texts[0] for name, texts in parse_qs(parts.query).items()}
        return cls(
            host=parts.hostname or options.get("host", ""),
            port=parts.port or int(options.get("port", 5432)),
            user=unquote(parts.username or "postgres"),
            password=unquote(parts.password or ""),
            database=unquote(parts.path.strip("/")),
            ssl_mode=options.get("sslmode", "prefer"),
            root_certificate=options.get("sslrootcert", ""),
        )

    @property
    def local(self) -> bool:
        """Whether the connection does not leave this machine."""
        return self.host.startswith("/") or self.host in ("localhost", "127.0.0.1", "::1")


async def connect(address: Address) -> tuple[MessageTransport, bool]:
    """A connection before login, and whether it uses TLS. OSError or ConnectionLost."""
    loop = asyncio.get_running_loop()
    if address.host.startswith("/"):
        path = f"{address.host}/.s.PGSQL.{address.port}"
        _, wire = await loop.create_unix_connection(MessageTransport, path)
        return wire, False
    transport, wire = await loop.create_connection(MessageTransport, address.host, address.port)
    try:
        _keep_alive(transport.get_extra_info("socket"))
        if address.ssl_mode == "disable":
            return wire, False
        wire.send(SSL_REQUEST)
        answer = await wire.byte()
        if answer != b"S":
            if address.ssl_mode != "prefer" or answer != b"N":
                raise ConnectionLost(
                    "the server does not speak TLS; allow it there, or use sslmode=disable"
                )
            return wire, False
        if wire.waiting_bytes:  # injected by a third party, to be mistaken for encrypted data
            raise ConnectionLost("the server sent something before TLS was agreed on")
        encrypted = await loop.start_tls(
            transport, wire, _tls(address), server_hostname=address.host
        )
        if encrypted is None:
            raise ConnectionLost("the server closed the connection while TLS was agreed on")
        wire.connection_made(encrypted)
    except BaseException:
        transport.abort()
        raise
    return wire, True


def _keep_alive(connected: socket.socket) -> None:
    # Detects a lost peer while we wait for hours, as creating a slot may take.
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _tls(address: Address) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=address.root_certificate or None)
    except OSError as error:
        why = error.strerror or error
        raise ConnectionLost(
            f"cannot use the certificate {address.root_certificate}: {why}"
        ) from None
    context.check_hostname = address.ssl_mode == "verify-full"
    if not address.ssl_mode.startswith("verify"):
        context.verify_mode = ssl.CERT_NONE
    return context
