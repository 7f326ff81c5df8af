"""Reader of UDP datagrams. It guarantees no delivery, but counts what is lost on this machine."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator

from millstream.connectors.interface import ReaderOutput
from millstream.connectors.reading.allowed_senders import AllowedSenders
from millstream.connectors.reading.batcher import Batcher
from millstream.connectors.reading.reconnecting_reader import ReconnectingReader
from millstream.connectors.settings import SourceSettings
from millstream.connectors.source_options import endpoint
from millstream.connectors.udp.description import UdpSource
from millstream.values.report import SourceState

_LARGEST = 65535
_BATCH = 500  # datagrams that are read before other tasks run
_BUFFER = 8 << 20  # bytes of the requested receive buffer; net.core.rmem_max limits it
_SO_MEMINFO = 55  # of Linux: nine counters of a socket, the last is how many datagrams it dropped
_COUNTERS = struct.Struct("9I")


class UdpReader(ReconnectingReader[UdpSource]):
    """Reads the kernel's buffer whenever the output has room.

    It holds nothing back itself: while the output is full the kernel's buffer fills, and the kernel
    then drops datagrams.
    """

    def __init__(self, stream: str, source: UdpSource, settings: SourceSettings) -> None:
        super().__init__(stream, source, settings)
        self._allowed = AllowedSenders(source.allow)
        self._socket: socket.socket | None = None
        self._dropped = 0  # by the kernel, as far as counted

    @property
    def state(self) -> SourceState:
        """The current state, with what the kernel has dropped so far."""
        self._count_drops()
        return super().state

    async def read(self, output: ReaderOutput) -> None:
        """Listen until cancelled; OSError if the port is not available."""
        host, port = endpoint(self.source.url)
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as bound:
            bound.setblocking(False)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            bound.bind(address)
            self._socket, self._dropped = bound, 0
            try:
                self.listening()
                while True:
                    await _readable(bound)
                    batcher = Batcher(self.settings)
                    for datagram in self._waiting(bound):
                        batcher.add(datagram)
                    if batcher.oversized:
                        self.missed(batcher.oversized, "larger than collect.max_body")
                    await self.hand_over(output, batcher.drain())
            finally:
                self._count_drops()
                self._socket = None

    def _waiting(self, bound: socket.socket) -> Iterator[bytes]:
        try:
            for _ in range(_BATCH):
                if self._allowed.all:
                    yield bound.recv(_LARGEST)
                else:
                    datagram, sender = bound.recvfrom(_LARGEST)
                    if self._allowed.allows(sender[0]):
                        yield datagram
                    else:
                        self.log_rarely(
                            f"refused {sender[0]}, which is not in a network of `allow`"
                        )
        except BlockingIOError:
            return

    def _count_drops(self) -> None:
        if self._socket is None:
            return
        try:
            counters = self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _COUNTERS.size)
        except OSError:  # not Linux: unknown
            return
        dropped = _COUNTERS.unpack(counters)[-1]
        if new := (dropped - self._dropped) % 2**32:  # the kernel's counter wraps
            self._dropped = dropped
            self.missed(new, "the kernel had no room for the datagram")


async def _readable(bound: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(bound, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(bound)
