"""Allowed values of the Host header, as a protection from DNS rebinding.

The owner of evil.example can point that name to this machine. For a browser, the owner's page then
has the same origin as this server: it could read and send whatever a local user can. Its requests
still have `Host: evil.example`, and are refused here.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:@/?#\s]+))(?::[0-9]*)?")


class AllowedHosts:
    """Checks the Host header.

    Allowed are `localhost`, addresses of this machine, the name that it listens on, and the names
    in the settings.
    """

    def __init__(self, bound: str = "127.0.0.1", allowed: Iterable[str] = ()) -> None:
        patterns = [_normalize(each) for each in ("localhost", bound, *allowed) if each]
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
        name = _normalize(match[1] or match[2])
        address = _address(name)
        if address is not None and (address.is_loopback or address.is_unspecified):
            return True
        if address is not None and address == _address(local):
            return True
        return self._allowed.fullmatch(name) is not None


def _normalize(name: str) -> str:
    return name.lower().removesuffix(".").removeprefix("[").removesuffix("]")


def _address(text: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
