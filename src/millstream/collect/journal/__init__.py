"""The collector's journal: a durable log on disk of what is not in Kafka yet.

journal.py    append, settle, read: the interface for the rest of the collector
writer.py     the thread that writes and syncs groups of entries
record.py     the format of one record
segment.py    one file, and the state of its entries
reading.py    reads entries back from their segments
recovery.py   opening: cuts torn ends, sets damaged records aside
damage.py     damaged records: counted, listed, acknowledged
scan.py       reads a segment past damaged bytes
read_only.py  bookmarks and losses, read by other processes
folder.py     the folder's lock and identity
spare.py      disk space reserved for a full disk
disk.py       calls to the operating system
"""

from millstream.collect.journal.damage import DamagedPiece, DamageStore
from millstream.collect.journal.journal import Journal
from millstream.collect.journal.read_only import is_lost, read_bookmarks
from millstream.collect.journal.recovery import Recovery
from millstream.collect.journal.settings import JournalSettings

__all__ = [
    "DamageStore",
    "DamagedPiece",
    "Journal",
    "JournalSettings",
    "Recovery",
    "is_lost",
    "read_bookmarks",
]
