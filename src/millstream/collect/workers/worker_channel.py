"""A worker's post: which of how many it is, and what it and its parent tell each other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from millstream.collect.workers.assignment import Duty, assign
from millstream.errors import MachineError


class Found(msgspec.Struct, frozen=True):
    """A journal as a worker found it."""

    identity: str
    bookmarks: dict[str, bytes]


class Opened(msgspec.Struct, frozen=True, tag=True):
    """A worker has its journals, by number, and the log's word on what waits in them."""

    journals: dict[int, Found]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """A worker listens."""

    url: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Why a worker ends: an error of ours, by its class."""

    kind: str
    message: str
    remedy: str


class Orders(msgspec.Struct, frozen=True):
    """What a worker is told before it opens its door."""

    duties: dict[str, Duty]  # of all workers, by stream
    owners: dict[str, int]  # a collector's identity → the worker that has its journal


Message = Opened | Ready | Failed


class Post(Protocol):
    """Where a worker stands."""

    worker: int
    workers: int

    async def report(self, journals: Mapping[int, Found]) -> Orders:
        """Tell what was found, and wait for the orders: they come when all workers are so far."""


class Alone:
    """The post of a collector that is one process."""

    worker, workers = 0, 1

    def __init__(self, sources: Sequence[str]) -> None:
        """`sources`: the streams that have one."""
        self._sources = sources

    async def report(self, journals: Mapping[int, Found]) -> Orders:
        return orders(self._sources, 1, journals)


class Manned:
    """One of several: the parent is at the other end of a socket."""

    def __init__(self, channel: socket.socket, worker: int, workers: int) -> None:
        self.worker, self.workers = worker, workers
        self._channel = channel

    async def report(self, journals: Mapping[int, Found]) -> Orders:
        loop = asyncio.get_running_loop()
        self._channel.setblocking(False)
        await loop.sock_sendall(self._channel, line(Opened(dict(journals))))
        told = b""
        while not told.endswith(b"\n"):
            piece = await loop.sock_recv(self._channel, 1 << 16)
            if not piece:
                raise MachineError("the collector's parent process is gone")
            told += piece
        return msgspec.json.decode(told, type=Orders)

    async def ready(self, url: str) -> None:
        """Tell that senders can come."""
        await asyncio.get_running_loop().sock_sendall(self._channel, line(Ready(url)))


def orders(sources: Sequence[str], workers: int, journals: Mapping[int, Found]) -> Orders:
    """The orders that follow from every journal of the home."""
    bookmarks = {number: found.bookmarks for number, found in journals.items()}
    return Orders(
        assign(sources, workers, bookmarks),
        {found.identity: number % workers for number, found in journals.items()},
    )


def line(message: Message | Orders) -> bytes:
    """A message as it goes over the channel."""
    return msgspec.json.encode(message) + b"\n"
