"""Events on which a query fails are found and set aside; all others are processed."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from millstream.analyze.recovery.poison import RecordRange, find_poison
from millstream.analyze.verify.verify import verify
from millstream.log.connection import client_config
from millstream.log.record import Record
from millstream.log.topic_names import late_topic, stream_topic

STREAM = """
app.stream("orders", schema="id LONG, city STRING, amount INT")
"""


@given(
    start=st.integers(0, 50),
    count=st.integers(1, 300),
    broken=st.sets(st.integers(0, 349), max_size=5),
)
def test_the_search_finds_exactly_the_poison_events_in_few_attempts(
    start: int, count: int, broken: set[int]
) -> None:
    tries = Counter[str]()

    def fails(pending: RecordRange) -> str:
        tries["made"] += 1
        return "broken" * bool(broken & set(range(pending.start, pending.stop)))

    found = list(find_poison([RecordRange("t", 0, start, start + count)], fails))
    here = sorted(broken & set(range(start, start + count)))
    assert found == [(RecordRange("t", 0, offset, offset + 1), "broken") for offset in here]
    assert tries["made"] <= 1 + 2 * len(here) * math.ceil(math.log2(count) + 1)


def set_aside(live: Any, stream: str) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """What the late topic holds: (event, headers), read as committed."""
    topic = late_topic(live.app.name, stream)
    consumer = Consumer(client_config(live.settings.log, group_id="tests"))
    try:
        start, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
        consumer.assign([TopicPartition(topic, 0, start)])
        found = []
        while consumer.position([TopicPartition(topic, 0)])[0].offset < end:
            message = consumer.poll(0.5)
            if message is None:
                if end and consumer.position([TopicPartition(topic, 0)])[0].offset >= end - 1:
                    break  # the last record marks the transaction's end
                continue
            record = Record.of(message)
            headers = {name: value.decode() for name, value in record.headers}
            found.append((json.loads(record.value or b"null"), headers))
        return found
    finally:
        consumer.close()


@pytest.mark.timeout(400)
def test_poison_events_are_set_aside_and_the_others_processed(live: Any, pipeline: Any) -> None:
    views = """
app.view("ratios", mode="micro_batch", key=["city"],
         sql="SELECT city, sum(100 div amount) AS total FROM orders GROUP BY city")
app.view("sturdy", sql="SELECT id FROM orders")
"""
    app = pipeline(f"""{STREAM}{views}
app.view("numbers", sql="SELECT id, CAST(city AS INT) AS number FROM orders", mode="real_time")
""")
    live.start(app)
    live.send("orders", {"id": 1, "city": "7", "amount": 10})
    live.gives(lambda: live.stream("numbers"), [{"id": 1, "number": 7}])
    live.send("orders", {"id": 2, "city": "no number", "amount": 0})
    live.send("orders", *({"id": 3 + i, "city": "8", "amount": 5} for i in range(40)))
    live.send("orders", {"id": 43, "city": "none", "amount": 1})

    numbers = [{"id": 1, "number": 7}, *({"id": 3 + i, "number": 8} for i in range(40))]
    live.gives(lambda: live.stream("numbers"), numbers)
    totals = {"7": 10, "8": 800, "none": 100}
    live.gives(lambda: {r["city"]: r["total"] for r in live.table("ratios").values()}, totals)
    live.until(lambda: all(c.state == "running" for c in live.queries.counts().values()))
    counts = live.queries.counts()
    assert {name: each.broken for name, each in counts.items()} == {
        "numbers": 2,
        "ratios": 1,
        "sturdy": 0,
    }
    topic = stream_topic(live.app.name, "orders")
    assert counts["ratios"].newest_broken.position == f"{topic}/0/1"
    assert counts["sturdy"].restarts == 0
    late = set_aside(live, "orders")
    assert sorted((event["id"], headers["late_views"]) for event, headers in late) == [
        (2, '{"numbers": []}'),
        (2, '{"ratios": []}'),
        (43, '{"numbers": []}'),
    ]
    assert {headers["late_reason"] for _, headers in late} == {"broken"}
    errors = {headers["late_error"] for event, headers in late if event["id"] == 43}
    assert any("'none'" in text and "cannot be cast" in text for text in errors)

    # After a restart they are left out from the start, and not set aside once more.
    live.stop()
    live.start(app)
    live.send("orders", {"id": 44, "city": "9", "amount": 4})
    live.gives(lambda: live.stream("numbers"), [*numbers, {"id": 44, "number": 9}])
    totals["9"] = 25
    live.gives(lambda: {r["city"]: r["total"] for r in live.table("ratios").values()}, totals)
    assert [each.restarts for each in live.queries.counts().values()] == [0, 0, 0]
    assert len(set_aside(live, "orders")) == 3

    # A recomputation in batch leaves the same ones out, else it would fail.
    query = next(each for each in live.planned if each.view.name == "numbers")
    checkpoints = live._home / "checkpoints"
    assert verify(query, live.settings.log, checkpoints=checkpoints).differences == []

    # A changed query tries them again.
    live.stop()
    live.start(
        pipeline(f"""{STREAM}{views}
app.view("numbers", sql="SELECT id, try_cast(city AS INT) AS number FROM orders")
""")
    )
    live.until(lambda: live.queries.counts()["numbers"].state == "running")
    live.gives(lambda: [row["id"] for row in live.stream("numbers")], list(range(1, 45)))
    assert live.queries.counts()["numbers"].broken == 0
