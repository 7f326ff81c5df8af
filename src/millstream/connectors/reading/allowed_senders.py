"""The addresses that may send to a port on which a reader listens."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network


class AllowedSenders:
    """The networks that senders may have; all if none is named."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ip_network(network) for network in networks]
        self.all = not self._networks
        self.allows = lru_cache(maxsize=4096)(self._allows)

    def _allows(self, address: str) -> bool:
        peer = ip_address(address.partition("%")[0])
        if isinstance(peer, IPv6Address) and peer.ipv4_mapped is not None:
            peer = peer.ipv4_mapped
        return self.all or any(peer in network for network in self._networks)
