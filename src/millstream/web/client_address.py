"""The address of a client behind proxies: `Forwarded` (RFC 7239) or `X-Forwarded-For`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_FOR = re.compile(r'(?:^|;)\s*for="?([^";]*)"?\s*(?:;|$)', re.IGNORECASE)
_WITH_PORT = re.compile(r"\[([^\]]*)\](?::\d+)?|([^:]*)(?::\d+)?")
_MAX_HOPS = 20


class TrustedProxies:
    """Finds the client in the headers of proxies that the settings name.

    Anybody can send these headers. So the search starts at the connection's peer and goes back one
    hop for each address that is a trusted proxy.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = [ipaddress.ip_network(each) for each in networks]
        self.trusts = lru_cache(4096)(self._trusts)

    def _trusts(self, host: str) -> bool:
        """Whether a host, or a network that counts as one client, is a trusted proxy."""
        try:
            network = ipaddress.ip_network(host.partition("%")[0], strict=False)
        except ValueError:
            return False
        return any(
            each.version == network.version and each.overlaps(network) for each in self._networks
        )

    def client(self, peer: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The address of the client that sent a request with these headers.

        A proxy writes one of the two headers and may pass on what the client wrote into the other.
        If they name different clients, neither is believed.
        """
        if not self._networks or not self.trusts(peer):
            return peer
        forwarded, x_forwarded = [], []
        for name, value in headers:
            if name == b"forwarded":
                forwarded += value.decode("latin-1").split(",")
            elif name == b"x-forwarded-for":
                x_forwarded += value.decode("latin-1").split(",")
        found = {
            self._walk(peer, hops)
            for hops in ([_for(each) for each in forwarded], x_forwarded)
            if hops
        }
        return found.pop() if len(found) == 1 else peer

    def _walk(self, peer: str, hops: Sequence[str]) -> str:
        at = peer
        for hop in reversed(hops[-_MAX_HOPS:]):
            address = _address(hop)
            if address is None or not self.trusts(at):
                return at
            at = str(address)
        return at


def _for(element: str) -> str:
    match = _FOR.search(element.strip())
    return match[1] if match is not None else ""


def _address(hop: str) -> _Address | None:
    """The address in `192.0.2.1`, `192.0.2.1:80`, `[2001:db8::1]:80` or `2001:db8::1`."""
    text = hop.strip().strip('"')
    match = _WITH_PORT.fullmatch(text)
    try:
        return ipaddress.ip_address((match[1] or match[2]) if match is not None else text)
    except ValueError:  # such as `unknown`, or a name that hides the address
        return None
