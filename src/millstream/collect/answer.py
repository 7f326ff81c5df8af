"""What a sender is told about the events that it handed in."""

from __future__ import annotations

from typing import Any

from millstream.collect.asgi import Problem
from millstream.collect.entry import Entry
from millstream.collect.intake import Ack
from millstream.receipt import Receipt, Receipts

_LATER = (
    "the events without a place in the log are on disk and will get there; sending them again "
    "is not needed"
)
Content = dict[str, Any]


class Answers:
    """Writes the answers, with a receipt for each event."""

    def __init__(self, receipts: Receipts) -> None:
        self._receipts = receipts

    def of(self, entry: Entry, ack: Ack) -> tuple[int, Content]:
        """Status and content; Problem 422 if no event is valid."""
        content = self._content(entry)
        if entry.rejections and len(entry.rejections) == entry.size:
            raise _all_rejected(entry, content)
        if entry.failures:
            content["failed"] = [
                {"index": index, "error": error, "receipt": self._receipt(entry, index)}
                for index, error in sorted(entry.failures.items())
            ]
            return 202, content
        if ack == "log" and entry.open:
            content["detail"] = _LATER
            return 202, content
        return (200 if ack == "log" else 202), content

    def _content(self, entry: Entry) -> Content:
        rejections, failures = entry.rejections, entry.failures
        if not rejections and not failures:
            receipts = [self._receipt(entry, index) for index in range(entry.size)]
            return {"accepted": entry.size, "receipts": receipts, "rejected": []}
        receipts = [
            self._receipt(entry, index)
            for index in range(entry.size)
            if index not in rejections and index not in failures
        ]
        rejected = [
            {
                "index": index,
                "error": str(invalid),
                "field": invalid.field,
                "receipt": self._receipt(entry, index),
            }
            for index, invalid in sorted(rejections.items())
        ]
        return {"accepted": len(receipts), "receipts": receipts, "rejected": rejected}

    def _receipt(self, entry: Entry, index: int) -> str:
        delivery = entry.deliveries[index]
        return self._receipts.write(
            Receipt(
                entry.collector,
                entry.sequence,
                index,
                entry.lane.name,
                entry.arrival.received_at,
                None if delivery is None else delivery.partition,
                None if delivery is None else delivery.offset,
                index in entry.rejections,
            )
        )


def _all_rejected(entry: Entry, content: Content) -> Problem:
    first, count = entry.rejections[0], entry.size
    detail = str(first) if count == 1 else f"none of the {count} events is valid; first: {first}"
    return Problem(422, detail, field=first.field, **content)
