"""Scripted peers and whole systems, for the pages that need them."""

from __future__ import annotations

from tests.client.conftest import http_peer, peers, socket_peer
from tests.end_to_end.conftest import start_system

__all__ = ["http_peer", "peers", "socket_peer", "start_system"]
