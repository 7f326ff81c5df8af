"""Limits for connections: their number, number by address, memory and time."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, Protocol

from uvicorn.server import ServerState

from millstream.web.allowed_hosts import AllowedHosts
from millstream.web.asgi import Scope
from millstream.web.client_address import TrustedProxies
from millstream.web.fast_path import FastPath, HeadCache
from millstream.web.settings import HttpSettings

CERTIFICATE = "millstream.certificate"  # in a request's scope: the names in the client certificate

AdmitWebSocket = Callable[[Scope], Awaitable[None]]
"""Sets the caller in the scope of a request for a WebSocket; Problem if it is refused."""

_SPARE_FILES = 200  # descriptors for the journal, Kafka and sources


class LimitedConnection(Protocol):
    """A connection, as `ConnectionLimits` uses it."""

    def check_timeouts(self, now: float) -> None:
        """Close the connection if it has waited too long for its peer."""
        ...

    def abort(self) -> None:
        """Close the connection now."""
        ...


class ConnectionLimits:
    """Counts the connections of one server, and checks their timeouts without a timer for each."""

    def __init__(
        self,
        settings: HttpSettings,
        *,
        tier: str,
        hosts: AllowedHosts,
        fast_path: FastPath | None = None,
        proxies: TrustedProxies | None = None,
        admit_websocket: AdmitWebSocket | None = None,
    ) -> None:
        self.settings = settings
        self.tier = tier
        self.hosts = hosts
        self.fast_path = fast_path
        self.proxies = proxies or TrustedProxies()
        self.admit_websocket = admit_websocket
        self.heads = HeadCache()
        self.now = asyncio.get_running_loop().time()  # at the last check; exact enough
        self.count = 0
        self.memory = 0  # bytes that all connections hold
        self.refused: Counter[str] = Counter()  # by reason
        wanted = settings.max_connections + _SPARE_FILES
        self._max_count = max(1, min(settings.max_connections, _open_files(wanted) - _SPARE_FILES))
        self._by_network: Counter[str] = Counter()
        # Bytes that each connection holds; the one that has waited longest comes first.
        self._held: dict[LimitedConnection, int] = {}

    def admit(self, network: str) -> bool:
        """Count one more connection from a network; False if there are too many."""
        if self.count >= self._max_count:
            self.refused["connections"] += 1
            return False
        if not self._has_room(network):
            return False
        self.count += 1
        self._by_network[network] += 1
        return True

    def move(self, network: str, client: str) -> bool:
        """Count an admitted connection for the client behind a proxy; False if it has too many."""
        if client != network:
            if not self._has_room(client):
                return False
            self.release(network)
            self.count += 1
            self._by_network[client] += 1
        return True

    def _has_room(self, network: str) -> bool:
        # A proxy has the connections of many clients.
        limit = self.settings.max_connections_per_address
        if self._by_network[network] >= limit and not self.proxies.trusts(network):
            self.refused["connections_per_address"] += 1
            return False
        return True

    def release(self, network: str) -> None:
        """Count an admitted connection as closed."""
        self.count -= 1
        self._by_network[network] -= 1
        if not self._by_network[network]:
            del self._by_network[network]

    def set_memory(self, connection: LimitedConnection, size: int) -> None:
        """Set how many bytes a connection holds; abort the oldest if all hold too many.

        The oldest are the ones that have held bytes for the longest time.
        """
        self.memory += size - self._held.get(connection, 0)
        if size:
            self._held[connection] = size  # keeps its place in the order
        else:
            self._held.pop(connection, None)
        while self.memory > self.settings.max_buffer_memory:
            oldest = next(iter(self._held))
            self.memory -= self._held.pop(oldest)
            self.refused["buffer_memory"] += 1
            oldest.abort()

    async def watch(self, state: ServerState) -> None:
        """Close connections of slow peers; runs until cancelled."""
        settings, loop = self.settings, asyncio.get_running_loop()
        limits = (settings.header_timeout, settings.idle_timeout, settings.write_timeout)
        pause = min(0.5, *(each / 4 for each in limits))
        while True:
            await asyncio.sleep(pause)
            self.now = loop.time()
            for connection in list(state.connections):
                if hasattr(connection, "check_timeouts"):
                    connection.check_timeouts(self.now)


@lru_cache(4096)
def network_of(host: str) -> str:
    """The address that limits apply to: for IPv6 the /64, because one client has all of it."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host


def peer_network(transport: asyncio.BaseTransport) -> str:
    """The network of a connection's peer."""
    peer = transport.get_extra_info("peername")
    return network_of(peer[0]) if isinstance(peer, tuple) else "unknown"


def set_user_timeout(transport: asyncio.BaseTransport, seconds: float) -> None:
    """Close the connection if sent bytes are not acknowledged for so long; 0: as the system does.

    Only Linux has this.
    """
    plain = transport.get_extra_info("socket")
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None and plain is not None and plain.family != socket.AF_UNIX:
        plain.setsockopt(socket.IPPROTO_TCP, option, round(seconds * 1000))


def certificate_names(certificate: dict[str, Any] | None) -> tuple[str, ...]:
    """The common name and the alternative names in a verified client certificate."""
    if not certificate:
        return ()
    common = [
        value
        for part in certificate.get("subject", ())
        for name, value in part
        if name == "commonName"
    ]
    return tuple(dict.fromkeys([*common, *(v for _, v in certificate.get("subjectAltName", ()))]))


def _open_files(wanted: int) -> int:
    """The number of files that this process may open, after raising it to `wanted` if possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft
