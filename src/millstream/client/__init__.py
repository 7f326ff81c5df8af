"""A running system from Python: read views as they change, and send events.

messages  what a server tells: snapshot, change, gap, lag
client    `Client`: ask for rows, follow changes, query in SQL
changes   the connection behind `Client.changes`: reconnects, and goes on where it was
sender    `Sender`: hand in events
batch     events as lines of JSON, in batches
access    how a sender shows who it is
delivery  one batch's way in, until its outcome is known
servers   several addresses of one system, and which of them answers
backoff   how long to wait before trying again
"""

from millstream.client.changes import Changes
from millstream.client.client import Client
from millstream.client.delivery import Rejection
from millstream.client.messages import (
    Change,
    Entries,
    Gap,
    Keyed,
    Lag,
    Message,
    Rows,
    Snapshot,
    Table,
)
from millstream.client.sender import Sender, Sent
from millstream.values.ledger_entry import LedgerEntry as Entry

__all__ = [
    "Change",
    "Changes",
    "Client",
    "Entries",
    "Entry",
    "Gap",
    "Keyed",
    "Lag",
    "Message",
    "Rejection",
    "Rows",
    "Sender",
    "Sent",
    "Snapshot",
    "Table",
]
