"""Bills clicks from the ledger: adds up what comes, and is right at any moment.

    python billing.py                 go on as entries come
    python billing.py --once          what is owed by what is in the ledger now, as JSON

It knows nothing of windows, watermarks or corrections: an assertion is added, a retraction is
taken off, and an entry that comes a second time has the id of the first.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

TOPIC = "clicks.ledger.clicks_per_minute"
CENTS = 2  # a click


class Bill:
    """The clicks to pay for, by page."""

    def __init__(self) -> None:
        self.clicks: Counter[str] = Counter()
        self._seen: set[str] = set()

    def add(self, entry: Mapping[str, Any]) -> None:
        if entry["id"] in self._seen:
            return
        self._seen.add(entry["id"])
        _, page = entry["key"]
        sign = {"assertion": 1, "retraction": -1}[entry["kind"]]
        self.clicks[page] += sign * entry["amounts"]["clicks"]


def entries(bootstrap: str, *, follow: bool) -> Iterator[dict[str, Any]]:
    """What is in the ledger, from its beginning; then what comes, if asked to follow."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "billing",  # never used: a bill is added up from the beginning
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        found = consumer.list_topics(TOPIC, timeout=10).topics[TOPIC]
        if found.error is not None:
            raise KafkaException(found.error)
        parts = [TopicPartition(TOPIC, number, 0) for number in found.partitions]
        unread = set(found.partitions)
        consumer.assign(parts)
        while follow or unread:
            message = consumer.poll(0.2)
            if message is None:
                continue
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                    continue
                raise KafkaException(error)
            yield json.loads(message.value() or b"{}")
    finally:
        consumer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:19092", help="the pipeline's Kafka")
    parser.add_argument("--once", action="store_true", help="end with what is in the ledger now")
    options = parser.parse_args()
    bill = Bill()
    try:
        for entry in entries(options.bootstrap, follow=not options.once):
            bill.add(entry)
            if not options.once:
                page, sign = entry["key"][1], "+" if entry["kind"] == "assertion" else "-"
                cents = bill.clicks[page] * CENTS
                print(f"{sign}{entry['amounts']['clicks']:4} {page:14} {cents / 100:9.2f}")
    except KafkaException as error:
        sys.exit(f"error: cannot read {TOPIC}: {error.args[0].str()}; start the pipeline first")
    except KeyboardInterrupt:
        sys.exit(130)
    if options.once:
        print(json.dumps(dict(sorted(bill.clicks.items())), ensure_ascii=False))


if __name__ == "__main__":
    main()
