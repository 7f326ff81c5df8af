"""Finds free ports, and the process that uses a taken one."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Iterator

LISTEN = "0A"


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on."""
    with socket.socket(_family(host)) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def choose_port(host: str, port: int, *, what: str, flag: str) -> int:
    """The port if it is free, or any free one for 0; MachineError names the process that has it."""
    try:
        return _bound(host, port) if port else free_port(host)
    except PermissionError:
        raise MachineError(
            f"cannot start {what} on port {port} of {host}: only root may listen there",
            remedy=f"choose a port from 1024 on with {flag} (0: any free one)",
        ) from None
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise MachineError(
                f"cannot start {what} on {host}: {error.strerror}",
                remedy=f"set {what}.host to an address of this machine",
            ) from None
    holder = holder_of(port) or "another process"
    raise MachineError(
        f"cannot start {what} on port {port} of {host}: {holder} listens there",
        remedy=f"stop it, or choose another port with {flag} (0: any free one)",
    )


def is_free(host: str, port: int) -> bool:
    """Whether a server can listen there now."""
    try:
        _bound(host, port)
    except OSError:
        return False
    return True


def _bound(host: str, port: int) -> int:
    with socket.socket(_family(host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
    return port


def holder_of(port: int) -> str:
    """`process 123 (java -cp …)` that listens on the port; empty if that cannot be found out."""
    inodes = _listening_inodes(port)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and not inodes.isdisjoint(_open_files(entry)):
            with contextlib.suppress(OSError):  # ended meanwhile
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                return f"process {entry.name} ({words.strip()[:60]})"
    return ""


def _open_files(process: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):  # ended meanwhile, or another user's
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile; the others count
                yield os.readlink(descriptor)


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                _, local, _, state, *rest = line.split()
                if state == LISTEN and int(local.rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{rest[5]}]")
    return inodes


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
