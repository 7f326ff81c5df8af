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
