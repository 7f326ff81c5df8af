"""Records of a group's topics as messages for its members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.log.dead_letters.undelivered import (
    ATTEMPTS,
    ORDER,
    POSITION,
    REASON,
    STATE,
    state_of,
)
from millstream.log.record import Record
from millstream.serve.groups.definition import GroupDefinition
from millstream.serve.groups.progress import Message
from millstream.serve.views.encoding import Encoding, encode
from millstream.serve.views.served_view import ServedView
from millstream.values.position import Position


class MessageReader:
    """Makes messages of records, with the group's filter and columns.

    A group is no copy of the view: a row that stops matching `where` is no message. Deletes are
    messages only for a group that gets all rows, because a delete has no row to test.
    """

    def __init__(self, definition: GroupDefinition, served: ServedView, epoch: str) -> None:
        self._definition = definition
        self._served = served
        self._epoch = epoch
        self._has_all_rows = definition.where is None and definition.rows is None
        self._visibility = definition.visibility
        self._encoding: Encoding | None = None  # the view holds it only as long as it is used

    def read(self, record: Record) -> Message | None:
        """The message in a record of the source; None if there is none for this group."""
        table, partition, offset = self._served.table, record.partition, record.offset
        if table.is_ignored(partition, offset):
            return None  # a repeat, or older than the row that the view has
        key = (record.key or b"null") if table.keyed else b"null"
        if record.value is None:
            if not self._has_all_rows or not table.keyed:
                return None
            body = b'"op":"delete","key":%b,"row":null' % key
        else:
            row = self._row(record)
            if row is None:
                return None
            body = b'"op":"upsert","key":%b,"row":%b' % (key, row)
        position = str(Position(self._epoch, {partition: offset + 1}))
        return Message(
            id=f"{partition}-{offset}",
            partition=(record.topic, partition),
            offset=offset,
            key=self._order(record),
            body=body,
            position=position,
        )

    def read_retry(self, record: Record) -> Message | None:
        """The message in a record of the undelivered topic, if it is to be delivered again."""
        if state_of(record) != "retry" or record.value is None:
            return None
        headers = dict(record.headers)
        return Message(
            id=f"r{record.partition}-{record.offset}",
            partition=(record.topic, record.partition),
            offset=record.offset,
            key=headers.get(ORDER) or None,
            body=record.value[1:-1],
            position=headers.get(POSITION, b"").decode(),
        )

    def _row(self, record: Record) -> bytes | None:
        try:
            row: Mapping[str, Any] = self._served.table.read_again(
                record.partition, record.offset, record.value or b""
            )
        except ValueError:  # not JSON
            return None
        wanted = self._definition
        # The view may get other columns meanwhile, and with them another encoding.
        encoding = self._served.encoding(
            wanted.where, wanted.select, wanted.lineage, self._visibility
        )
        self._encoding = encoding
        return encode(encoding.project(row)) if encoding.matches(row) else None

    def _order(self, record: Record) -> bytes | None:
        """What the order of messages is kept for: the key; none in a view without one."""
        if self._served.kind == "view" and not self._served.table.keyed:
            return None
        return record.key


def undelivered_record(message: Message) -> tuple[bytes, dict[str, str | bytes]]:
    """The value and headers with which a message is set aside."""
    order = message.key if isinstance(message.key, bytes) else b""
    headers: dict[str, str | bytes] = {
        STATE: "set_aside",
        REASON: message.reason,
        ATTEMPTS: str(message.attempt),
        POSITION: message.position,
        ORDER: order,
    }
    return b"{%b}" % message.body, headers
