"""The answer to a sender about the events of its request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from millstream.collect.dedup.dedup import Original
from millstream.collect.intake.entry import MOST_EXPLAINED, Entry
from millstream.collect.intake.intake import Ack
from millstream.log.producing.producer import RecordMetadata
from millstream.syntax.duration import format_duration
from millstream.values.receipt import Receipt, Receipts
from millstream.web.problem import Problem

_LATER = (
    "the events that are not in the log yet are on disk and will get there; do not send them again"
)
_ONE = b'{"accepted":1,"receipts":["%b"],"rejected":[]}'
Content = dict[str, Any]


class Answers:
    """Builds the answers, with a receipt for each event."""

    def __init__(
        self, receipts: Receipts, delivery_of: Callable[[Original], RecordMetadata | None]
    ) -> None:
        """`delivery_of` says where in the log an earlier event is, if that is known."""
        self._receipts = receipts
        self._delivery_of = delivery_of

    def of(self, entry: Entry, ack: Ack, are_originals_logged: bool = True) -> tuple[int, Content]:
        """The status and content; Problem 422 if no event is valid."""
        content = self._content(entry)
        if entry.future:
            content["future"] = entry.future
            content["warning"] = _warning(entry)
        if entry.note:
            content["detail"] = entry.note
        if entry.rejections and len(entry.rejections) == entry.size:
            raise _all_rejected(entry, content)
        if entry.failures:
            content["failed"] = [
                {"index": index, "error": error, "receipt": self._receipt(entry, index)}
                for index, error in sorted(entry.failures.items())
            ]
            return 202, content
        if ack == "log" and (entry.unsettled or not are_originals_logged):
            content["detail"] = f"{entry.note}; {_LATER}" if entry.note else _LATER
            return 202, content
        return (200 if ack == "log" else 202), content

    def encoded(self, entry: Entry, ack: Ack) -> tuple[int, bytes]:
        """As `of`, encoded as JSON."""
        if (
            entry.size == 1
            and entry.is_all_new
            and not entry.future
            and not (ack == "log" and entry.unsettled)
        ):
            return (200 if ack == "log" else 202), _ONE % self._receipt(entry, 0).encode()
        status, content = self.of(entry, ack)
        return status, msgspec.json.encode(content)

    def _content(self, entry: Entry) -> Content:
        rejections, failures, shed = entry.rejections, entry.failures, entry.message.shed
        if entry.is_all_new:
            if entry.size > 1 and not any(entry.deliveries):
                receipts = self._receipts.write_all(self._receipt_without_offset(entry), entry.size)
            else:
                receipts = [self._receipt(entry, index) for index in range(entry.size)]
            return {"accepted": entry.size, "receipts": receipts, "rejected": []}
        without = {*rejections, *failures, *shed}
        # A key that was used before with another body gets the answer of that request.
        indexes = sorted(entry.originals) if entry.note else range(entry.size)
        receipts = [self._receipt(entry, index) for index in indexes if index not in without]
        rejected = [
            {
                "index": index,
                "error": str(invalid),
                "field": invalid.field,
                "receipt": self._receipt(entry, index),
            }
            for index, invalid in sorted(rejections.items())[:MOST_EXPLAINED]
        ]
        content: Content = {"accepted": len(receipts), "receipts": receipts, "rejected": rejected}
        if len(rejections) > len(rejected):
            content["rejected_total"] = len(rejections)
        if entry.originals:
            content["duplicates"] = [
                index for index in sorted(entry.originals) if index not in without
            ]
        if shed:
            content["shed"] = len(shed)
        return content

    def _receipt(self, entry: Entry, index: int) -> str:
        original = entry.originals.get(index) if entry.originals else None
        if original is None:
            delivery, received_at = entry.deliveries[index], entry.message.received_at
            event = (entry.collector, entry.sequence, index)
        else:
            delivery, received_at = self._delivery_of(original), original.received_at
            event = (original.collector, original.sequence, original.index)
        return self._receipts.write(
            Receipt(
                *event,
                entry.stream.name,
                received_at,
                None if delivery is None else delivery.partition,
                None if delivery is None else delivery.offset,
                index in entry.rejections,
            )
        )

    def _receipt_without_offset(self, entry: Entry) -> Receipt:
        received_at = entry.message.received_at
        return Receipt(entry.collector, entry.sequence, 0, entry.stream.name, received_at)


def _warning(entry: Entry) -> str:
    stream, count = entry.stream.declaration, len(entry.future)
    return (
        f"{count} of {entry.size} events: {stream.event_time} is more than "
        f"{format_duration(stream.ahead)} after the receipt; such an event is in the log and in "
        "the late topic, but in no view: correct the sender's clock and send it again"
    )


def _all_rejected(entry: Entry, content: Content) -> Problem:
    first, count = entry.rejections[0], entry.size
    detail = str(first) if count == 1 else f"none of the {count} events is valid; first: {first}"
    return Problem(422, detail, field=first.field, **content)
