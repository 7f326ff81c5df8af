"""Python client of a running system: `Client` reads views and changes, `Sender` sends events."""

from millstream.client.changes import Changes
from millstream.client.client import Client
from millstream.client.delivery import Rejection
from millstream.client.group import GroupMessage, GroupMessages
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
    "GroupMessage",
    "GroupMessages",
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
