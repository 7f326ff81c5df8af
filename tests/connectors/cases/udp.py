"""Senders of datagrams."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from tests.connectors.conformance_case import Case, event
from tests.connectors.tcp_server import free_port

from millstream.connectors import UdpSource


class UdpCase(Case):
    name = "udp"
    up = "listening"
    why_no_reconnect = "there is no connection"
    why_no_resume = "nobody keeps a datagram"
    why_no_stall = "there is no connection"
    why_no_hold = "the sender of a datagram gets no feedback"
    why_loss = "what the kernel has no room for is gone"

    async def start(self) -> None:
        self._port = free_port(socket.SOCK_DGRAM)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect(("127.0.0.1", self._port))

    async def stop(self) -> None:
        self._socket.close()

    @property
    def source(self) -> UdpSource:
        return UdpSource(f"udp://127.0.0.1:{self._port}")

    async def send(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._socket.send(event(number))

    async def pour(self, total: int) -> None:
        for number in range(total):
            self._socket.send(event(number, 900))
            self.poured = number + 1

    async def garbage(self) -> None:
        for datagram in (b"", b"\xff\xfe", b"{", b"\n\n", b"[1", b"y" * 60_000):
            self._socket.send(datagram)
