"""Who may send to a port on which we listen."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network


class Admission:
    """The networks that peers may come from; all if none is named."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ip_network(network) for network in networks]
        self.is_open = not self._networks
        self.admits = lru_cache(maxsize=4096)(self._admits)

    def _admits(self, address: str) -> bool:
        peer = ip_address(address.partition("%")[0])
        if isinstance(peer, IPv6Address) and peer.ipv4_mapped is not None:
            peer = peer.ipv4_mapped
        return self.is_open or any(peer in network for network in self._networks)
