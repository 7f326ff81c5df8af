"""TLS: a server certificate that can change at run time, and client certificates."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from millstream.errors import SettingsError
from millstream.web.connections import ConnectionLimits, network_of
from millstream.web.http_protocol import LimitedHttpProtocol
from millstream.web.settings import TlsSettings

# TLS 1.2 with forward secrecy and authenticated encryption only; 1.3 has nothing else.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_RETRY_SECONDS = 0.05  # when no connection can be accepted


class Certificate:
    """The server's certificate, as the SSL context of new connections."""

    def __init__(self, settings: TlsSettings, *, is_optional: bool = False) -> None:
        self._settings = settings
        self._is_optional = is_optional  # clients may log in without a certificate
        self._files = [
            Path(name)
            for name in (settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
            if name
        ]
        self._seen = self._state()
        self.context = _context(settings, is_optional)

    def reload(self) -> bool:
        """Read the files again if they have changed; after a SettingsError the old ones stay."""
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        self.context = _context(self._settings, self._is_optional)
        return True

    def _state(self) -> list[tuple[int, int] | None]:
        return [_stat(file) for file in self._files]


class TlsListener:
    """Accepts connections, counts each before its handshake, and limits the handshake's time.

    The event loop's own server would count a connection only after its handshake, and would never
    use a new certificate.
    """

    def __init__(
        self,
        listener: socket.socket,
        certificate: Certificate,
        limits: ConnectionLimits,
        inner: Callable[[str], LimitedHttpProtocol],
    ) -> None:
        self._listener = listener
        self._certificate = certificate
        self._limits = limits
        self._inner = inner
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, backlog: int) -> None:
        """Start to listen."""
        self._listener.setblocking(False)
        self._listener.listen(backlog)
        self._run(self._accept())

    def close(self) -> None:
        """Stop accepting, and cancel handshakes."""
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        while True:
            try:
                connection, address = await self._loop.sock_accept(self._listener)
            except OSError:  # no descriptor is free, or the peer has disconnected
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            network = network_of(address[0])
            if self._limits.admit(network):
                self._run(self._handshake(connection, network))
            else:
                connection.close()

    async def _handshake(self, connection: socket.socket, network: str) -> None:
        protocol = self._inner(network)
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._certificate.context,
                ssl_handshake_timeout=self._limits.settings.header_timeout,
            )
        except OSError:  # TLS errors, lost connections and timeouts are OSErrors
            self._limits.refused["tls"] += 1
        finally:
            if protocol.transport is None:  # it was never connected, so it will not release itself
                self._limits.release(network)
                connection.close()


def _context(settings: TlsSettings, is_optional: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without a password, OpenSSL would ask for one on the terminal, and wait.
        context.load_cert_chain(settings.tls_certificate, settings.tls_key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"cannot use {settings.tls_certificate} with {settings.tls_key}: {_reason(error)}",
            remedy="collect.tls_certificate must be a PEM chain, and collect.tls_key its private "
            "key, in PEM and without a password",
        ) from None
    if settings.tls_client_ca:
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"cannot use the authorities in {settings.tls_client_ca}: {_reason(error)}",
                remedy="collect.tls_client_ca must be certificates in PEM",
            ) from None
        context.verify_mode = ssl.CERT_OPTIONAL if is_optional else ssl.CERT_REQUIRED
    return context


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it is not PEM").replace("_", " ").lower()
    return (error.strerror if isinstance(error, OSError) else "") or str(error)


def _stat(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
