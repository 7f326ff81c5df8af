"""TLS for senders: a server's certificate that can change while it serves, and clients' own."""

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
_PAUSE = 0.05  # seconds, when nothing can be accepted


class Certificate:
    """The context that new connections are encrypted with."""

    def __init__(self, settings: TlsSettings, *, is_choice: bool = False) -> None:
        self._settings = settings
        self._is_choice = is_choice  # a client may log in without a certificate too
        self._files = [
            Path(name)
            for name in (settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
            if name
        ]
        self._seen = self._state()
        self.context = _context(settings, is_choice)

    def reload(self) -> bool:
        """Take the files anew if they have changed; SettingsError leaves what was."""
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        self.context = _context(self._settings, self._is_choice)
        return True

    def _state(self) -> list[tuple[int, int] | None]:
        return [_stat(file) for file in self._files]


class TlsListener:
    """Accepts connections: each is counted from its first moment, and its handshake hurried.

    Not left to the loop's own server, which would count one only after its handshake, and keep the
    certificate of its start for ever.
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
        """Listen from now on."""
        self._listener.setblocking(False)
        self._listener.listen(backlog)
        self._keep(self._accept())

    def close(self) -> None:
        """Accept nobody any more; handshakes that are under way end."""
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        while True:
            try:
                connection, address = await self._loop.sock_accept(self._listener)
            except OSError:  # no descriptor is free, or the peer is gone already
                await asyncio.sleep(_PAUSE)
                continue
            network = network_of(address[0])
            if self._limits.admit(network):
                self._keep(self._shake(connection, network))
            else:
                connection.close()

    async def _shake(self, connection: socket.socket, network: str) -> None:
        protocol = self._inner(network)
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._certificate.context,
                ssl_handshake_timeout=self._limits.settings.header_timeout,
            )
        except OSError:  # a TLS error, a lost connection and a timeout are each one
            self._limits.refused["tls"] += 1
        finally:
            if protocol.transport is None:  # it never came to be, so it will not leave either
                self._limits.release(network)
                connection.close()


def _context(settings: TlsSettings, is_choice: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without a password of ours, OpenSSL would ask for one on the terminal, and wait.
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
        context.verify_mode = ssl.CERT_OPTIONAL if is_choice else ssl.CERT_REQUIRED
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
