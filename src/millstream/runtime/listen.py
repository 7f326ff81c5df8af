"""The sockets that our servers listen on."""

from __future__ import annotations

import errno
import socket

from millstream.errors import MachineError


def bind(host: str, port: int, *, tier: str) -> socket.socket:
    """A socket on that address, not yet listening; MachineError if it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted sockets inherit it; without, an answer's second packet waits 40 ms for the client.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        taken = error.errno == errno.EADDRINUSE
        why = "another process has that port" if taken else error.strerror
        raise MachineError(
            f"cannot {tier} on {host}:{port}: {why}",
            remedy=f"stop it (`ss -ltnp 'sport = :{port}'` shows who it is), or choose another"
            f" with {tier}.port or --{tier}-port (0: any free one)"
            if taken
            else f"set {tier}.host and {tier}.port to an address of this machine",
        ) from None
    return bound


def share(bound: socket.socket) -> None:
    """Let `join` make more sockets on the same address.

    Only after it was bound: so an address that is taken is an error, also if its holder shares it.
    """
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def join(bound: socket.socket) -> socket.socket:
    """Another socket on the address of one that is shared; the kernel spreads connections."""
    joined = socket.socket(bound.family, bound.type, bound.proto)
    joined.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    joined.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    joined.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    joined.bind(bound.getsockname())
    return joined
