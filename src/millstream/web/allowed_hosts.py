"""The names under which a server answers: no other site's name may lead to it (DNS rebinding).

A page of evil.example whose name was made to point to this machine would be of the same origin as
the server, for a browser: it could read and send whatever a local user can. Its requests still have
`Host: evil.example`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:@/?#\s]+))(?::[0-9]*)?")


class AllowedHosts:
    """Decides which Host headers are ours.

    These are `localhost`, addresses of this machine, the name that it listens on, and what the
    settings allow.
    """

    def __init__(self, bound: str = "127.0.0.1", allowed: Iterable[str] = ()) -> None:
        patterns = [_normal(each) for each in ("localhost", bound, *allowed) if each]
        self._allowed = re.compile(
            "|".join(re.escape(each).replace(r"\*", ".*") for each in patterns)
        )
        self._allows_all = "*" in patterns
        self.accepts = lru_cache(1024)(self._accepts)

    def _accepts(self, host: bytes, local: str) -> bool:
        """Whether a request with this Host is for us; `local` is the address it was sent to."""
        if self._allows_all:
            return True
        match = _HOST.fullmatch(host.decode("latin-1"))
        if match is None:
            return False
        name = _normal(match[1] or match[2])
        address = _address(name)
        if address is not None and (address.is_loopback or address.is_unspecified):
            return True
        if address is not None and address == _address(local):
            return True
        return self._allowed.fullmatch(name) is not None


def is_same_origin(origin: str, host: str) -> bool:
    """Whether a page of this server sent the request, or no page: other clients send no origin."""
    return not origin or origin.partition("://")[2] == host


def _normal(name: str) -> str:
    return name.lower().removesuffix(".").removeprefix("[").removesuffix("]")


def _address(text: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
