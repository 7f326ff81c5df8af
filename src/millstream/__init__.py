"""Millstream: events go in at one end, live answers come out at the other.

The path of the data, and where each step lives:

    senders → collect → log (Kafka) → analyze (Spark) → log → store → serve → clients

    millstream.collect   takes events in: HTTP, and sources that it pulls from
    millstream.log       Kafka: the only thing that two tiers share
    millstream.analyze   runs the continuous queries that keep views up to date
    millstream.store     what a view holds in memory
    millstream.serve     gives views and their changes to clients
    millstream.client    reads and writes a running system from Python
"""

from millstream.app import App
from millstream.errors import MillstreamError
from millstream.source import WebSocketSource

__all__ = ["App", "MillstreamError", "WebSocketSource"]
__version__ = "0.1.0"
