"""TLS for senders: a server's certificate that can change while it serves, and clients' own."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from millstream.collect.connections import Door, GuardedProtocol, peer_network
from millstream.collect.protection_settings import ProtectionSettings
from millstream.errors import SettingsError

# TLS 1.2 with forward secrecy and authenticated encryption only; 1.3 has nothing else.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"

_logger = logging.getLogger(__name__)


class Certificate:
    """The context that new connections are encrypted with."""

    def __init__(self, settings: ProtectionSettings) -> None:
        self._settings = settings
        self._files = [
            Path(name)
            for name in (settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
            if name
        ]
        self._seen = self._state()
        self.context = _context(settings)

    def reload(self) -> bool:
        """Take the files anew if they have changed; SettingsError leaves what was."""
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        self.context = _context(self._settings)
        return True

    def _state(self) -> list[tuple[int, int] | None]:
        return [_stat(file) for file in self._files]


class TlsDoor(asyncio.Protocol):
    """A connection until its handshake is done: counted from its first moment, and hurried."""

    def __init__(
        self, certificate: Certificate, door: Door, inner: Callable[[str], GuardedProtocol]
    ) -> None:
        self._certificate = certificate
        self._door = door
        self._inner = inner
        self._network = ""
        self._early: list[bytes] = []
        self._is_lost = False
        self._shaking: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        network = peer_network(transport)
        if not self._door.enter(network):
            transport.abort()
            return
        self._network = network
        transport.pause_reading()  # the first bytes are for TLS
        self._shaking = asyncio.get_running_loop().create_task(self._shake(transport))

    def data_received(self, data: bytes) -> None:
        self._early.append(data)  # came with the end of the handshake

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True

    async def _shake(self, transport: asyncio.Transport) -> None:
        encrypted = None
        try:
            encrypted = await asyncio.get_running_loop().start_tls(
                transport,
                self,
                self._certificate.context,
                server_side=True,
                ssl_handshake_timeout=self._door.settings.header_timeout,
            )
        except OSError:  # a TLS error, a lost connection and a timeout are each one
            self._door.refused["tls"] += 1
        finally:
            if encrypted is None or self._is_lost:
                transport.abort()
                self._door.leave(self._network)
        if encrypted is not None and not self._is_lost:
            inner = self._inner(self._network)
            encrypted.set_protocol(inner)
            inner.connection_made(encrypted)
            for data in self._early:
                inner.data_received(data)


def _context(settings: ProtectionSettings) -> ssl.SSLContext:
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
        is_choice = "certificate" in settings.auth and len(set(settings.auth)) > 1
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
