"""The sockets that our servers listen on."""

from __future__ import annotations

import errno
import socket

from millstream.errors import MachineError


def bind(host: str, port: int, *, tier: str, shared: bool = False) -> socket.socket:
    """A socket on that address, not yet listening; MachineError if it is not available.

    If it is `shared`, other processes of this user can bind it too: the kernel then spreads
    connections evenly among those that listen. A listening socket that processes inherit does not:
    of 300 connections at once, 285 were seen to go to one of three processes.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
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
