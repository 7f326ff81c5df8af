"""Hidden columns: the names that Millstream adds beside a user's own columns.

A stream or view may not have a column with one of these names. They are part of stored rows, so a
name never changes.
"""

from __future__ import annotations

# Of an event: `analyze` reads them from the Kafka record. A query can use them by name.
ID = "_id"  # the event's id: the header ce_id
POSITION = "_position"  # the Kafka record: source, partition, offset; of a view's row also its row
RECEIVED = "_received_at"  # when a collector received the event; of a view's row: the newest event
EVENT_TIME = "_event_time"  # when the event happened; of a view's row: the newest event
WATERMARK = "_watermark"  # its stream's watermark when it arrived out of order, else null

# Of an event, inside a query's plan only; `analyze` computes them.
CLOSED = "_closed"  # windows that end by this time no longer accept the event
WEIGHT = "_weight"  # how many events this one stands for, after shedding

# Of a row in a view's topic.
REVISION = "_revision"  # how many events are in the row; written by the query
ERROR = "_error"  # half the 95 % interval of each estimate, after shedding; written by the query
LATE = "_late"  # the ids of the late events in the row, for its ledger; written by the query
STATE = "_state"  # provisional, final or corrected; written by `analyze` when a window closes
RETURNED = "_returned"  # the offset of the tombstone it returned after; written by `analyze`
KIND = "_kind"  # "retraction" if the row is retracted; written by `analyze`

OF_EVENTS = (ID, POSITION, RECEIVED, EVENT_TIME, WATERMARK)
FROM_HEADERS = (ID, WATERMARK)  # only present if the query reads Kafka headers
OF_PLANS = (CLOSED, WEIGHT)
OF_ROWS = (REVISION, ERROR, LATE, STATE, RETURNED, KIND)
RESERVED = frozenset((*OF_EVENTS, *OF_PLANS, *OF_ROWS))
# What `serve` removes from a row unless a client asks for lineage.
LINEAGE = frozenset((REVISION, POSITION, RECEIVED, EVENT_TIME, RETURNED, LATE))
