"""The collector's journal.

journal.py    append, settle, read: what the rest of the collector uses
writer.py     the thread that writes and syncs whole groups
record.py     the bytes of one record
segment.py    one file, and what is known of the entries in it
reading.py    entries read back from their segments
recovery.py   what is there on opening: torn ends cut, damaged records set aside
damage.py     what was set aside: counted, listed, acknowledged
scan.py       reading a segment past whatever is damaged
read_only.py  bookmarks and losses, read by other processes
folder.py     the folder's lock and identity
spare.py      room that is kept back for a full disk
disk.py       the calls to the operating system
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
