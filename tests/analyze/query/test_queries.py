"""Views on real Spark and real Kafka give the same rows as plain Python."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

from millstream.analyze.recovery.checkpoint_notes import notes_file
from millstream.log.topic_names import stream_topic

STREAM = """
app.stream("orders", schema="id LONG, city STRING, amount INT, at TIMESTAMP, tags ARRAY<STRING>",
           event_time="at", lateness="1 hour")
"""
HOUR = 3_600_000
START = 1_794_798_000_000  # a full hour, in milliseconds


def orders(count: int, seed: int = 1) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        {
            "id": number,
            "city": rng.choice(["Bern", "Köln", "Lyon", None]),
            "amount": rng.randrange(100),
            "at": START + rng.randrange(HOUR),
            "tags": rng.sample(["a", "b", "c", "d"], rng.randrange(4)),
        }
        for number in range(count)
    ]


@pytest.mark.parametrize("mode", ["real_time", "micro_batch"])
def test_every_view_equals_a_recomputation_in_plain_python(
    live: Any, pipeline: Any, mode: str
) -> None:
    live.start(
        pipeline(f"""{STREAM}
@app.view(key=["window", "city"], mode="{mode}")
def hourly(orders: DataFrame) -> DataFrame:
    hours = orders.groupBy(F.window("at", "1 hour"), "city")
    return hours.agg(F.count("*").alias("n"), F.sum("amount").alias("total"))

app.view("large", sql="SELECT id, amount FROM orders WHERE amount >= 50", mode="{mode}")

@app.view(mode="{mode}")
def tags(orders: DataFrame) -> DataFrame:
    return orders.select("id", F.explode("tags").alias("tag"))
""")
    )
    sent = orders(300)
    live.send("orders", *sent[:100])
    live.until(lambda: live.queries.settled)
    live.send("orders", *sent[100:])

    totals: dict[str | None, list[int]] = {}
    for order in sent:
        totals.setdefault(order["city"], []).append(order["amount"])
    window = {"start": "2026-11-16T03:00:00.000000Z", "end": "2026-11-16T04:00:00.000000Z"}
    live.gives(
        lambda: live.table("hourly"),
        {
            json.dumps([window, city], separators=(",", ":"), ensure_ascii=False): {
                "window": window,
                "city": city,
                "n": len(amounts),
                "total": sum(amounts),
            }
            for city, amounts in totals.items()
        },
    )
    live.gives(
        lambda: live.stream("large"),
        [{"id": o["id"], "amount": o["amount"]} for o in sent if o["amount"] >= 50],
    )
    live.gives(
        lambda: live.stream("tags"),
        [{"id": o["id"], "tag": tag} for o in sent for tag in o["tags"]],
    )
    assert {plan.plan.mode for plan in live.planned} == {mode}
    keys = {key for key, _ in live.records("large")}
    assert keys == {"orders/0"}
    some = next(row for _, row in live.records("tags") if row["_position"]["row"] == 1)
    assert some["_event_time"] is not None
    assert some["_received_at"] is not None


def read_of(live: Any, view: str) -> int:
    """How far a view says that it has read the orders."""
    topic = stream_topic(live.app.name, "orders")
    counts = live.queries.counts()[view]
    assert bool(counts.read) == bool(counts.read_at)
    offset: int = counts.read.get(topic, {}).get("0", 0)
    return offset


def test_a_restart_from_the_checkpoint_loses_nothing_and_counts_nothing_twice(
    live: Any, pipeline: Any
) -> None:
    app = pipeline(f"""{STREAM}
app.view("by_city", key=["city"], sql="SELECT city, count(*) AS n, sum(amount) AS total "
         "FROM orders GROUP BY city")
app.view("ids", sql="SELECT id FROM orders")
""")
    live.start(app)
    sent = orders(400)
    live.send("orders", *sent[:100])
    live.gives(lambda: len(live.stream("ids")), 100)
    # Past a checkpoint: what comes after it is what a restart repeats.
    running = [view.running for view in live.queries._views.values()]
    live.until(lambda: all(query.lastProgress for query in running))
    live.until(lambda: all(read_of(live, view) >= 100 for view in ("ids", "by_city")))
    live.send("orders", *sent[100:200])
    live.gives(lambda: len(live.stream("ids")), 200)
    live.stop()
    live.send("orders", *sent[200:300])
    live.start(app)
    live.send("orders", *sent[300:])

    live.until(lambda: len(live.stream("ids")) >= 400)
    assert live.stream("ids") == [{"id": number} for number in range(400)]
    expected = Counter(order["city"] for order in sent)
    live.gives(lambda: {r["city"]: r["n"] for r in live.table("by_city").values()}, expected)
    assert 100 <= read_of(live, "by_city") <= 400  # as the checkpoint has it
    repeated = [row["id"] for _, row in live.records("ids")]
    assert len(repeated) > len(set(repeated)), (
        "the restart repeated nothing: the test proves nothing"
    )


def test_a_query_killed_in_its_first_batch_starts_again(live: Any, pipeline: Any) -> None:
    app = pipeline(f"""{STREAM}
app.view("n", key=["city"], sql="SELECT city, count(*) AS n FROM orders GROUP BY city")
""")

    def counted() -> int:
        return sum(row["n"] for row in live.table("n").values())

    live.start(app)
    live.send("orders", *orders(40))
    live.gives(counted, 40)
    live.stop()
    # A kill before the first batch is recorded leaves rows in the topic and incomplete files.
    checkpoint = next(
        path for path in (live._home / "checkpoints" / "n").iterdir() if path.is_dir()
    )
    for log in ("offsets", "commits"):
        for noted in (checkpoint / log).iterdir():
            noted.unlink()
        (checkpoint / log / ".0.5f1c.tmp").write_bytes(b"v1")
    notes_file(checkpoint).unlink(missing_ok=True)
    assert any((checkpoint / "state").iterdir())
    live.start(app)
    live.send("orders", *orders(20))
    live.gives(counted, 60)
    assert live.queries.counts()["n"].restarts == 0


def test_a_changed_view_replays_the_log_into_a_new_topic(live: Any, pipeline: Any) -> None:
    before = pipeline(f"""{STREAM}
app.view("v", sql="SELECT id FROM orders WHERE amount >= 50")
app.view("same", key=["city"], sql="SELECT city, count(*) AS n FROM orders GROUP BY city")
""")
    live.start(before)
    sent = orders(60)
    live.send("orders", *sent)
    high = [o["id"] for o in sent if o["amount"] >= 50]
    live.gives(lambda: [row["id"] for row in live.stream("v")], high)
    live.gives(lambda: sum(row["n"] for row in live.table("same").values()), 60)
    generation = {q.view.name: q.plan.generation for q in live.planned}
    live.stop()
    kept = len(live.records("same"))

    after = pipeline(f"""{STREAM}
app.view("v", sql="SELECT id FROM orders WHERE amount < 50")
app.view("same", key=["city"], sql="SELECT city, count(*) AS n FROM orders GROUP BY city")
""")
    live.start(after)
    low = [o["id"] for o in sent if o["amount"] < 50]
    live.gives(lambda: [row["id"] for row in live.stream("v")], low)
    assert {row["id"] for _, row in live.records("v")} == set(low), (
        "the old results are still there"
    )
    changed = {q.view.name for q in live.planned if generation[q.view.name] != q.plan.generation}
    assert changed == {"v"}
    assert len(live.records("same")) >= kept
    assert [
        path.name for path in (live._home / "checkpoints" / "v").iterdir() if path.is_dir()
    ] == [next(q.plan.generation for q in live.planned if q.view.name == "v")]


def test_a_failing_view_is_restarted_and_the_others_go_on(live: Any, pipeline: Any) -> None:
    live.start(
        pipeline(f"""{STREAM}
app.view("fragile", key=["all"], sql="SELECT 'all' AS `all`, "
         "sum(amount * 1000000000000000000L) AS total FROM orders")
app.view("sturdy", sql="SELECT id FROM orders")
""")
    )
    live.send("orders", {"id": 1, "amount": 4})
    live.gives(lambda: [r["total"] for r in live.table("fragile").values()], [4 * 10**18])
    live.send("orders", {"id": 2, "amount": 6})  # too much together, but not by itself
    live.until(lambda: live.queries.counts()["fragile"].restarts >= 2)
    live.until(lambda: "no event fails by itself" in live.queries.counts()["fragile"].error)
    counts = live.queries.counts()
    assert "overflow" in counts["fragile"].error
    assert "\n" not in counts["fragile"].error
    assert counts["fragile"].broken == 0
    live.send("orders", {"id": 3, "amount": 1})
    live.gives(lambda: live.stream("sturdy"), [{"id": 1}, {"id": 2}, {"id": 3}])
    assert live.queries.counts()["sturdy"].restarts == 0
    live.gives(lambda: live.queries.counts()["sturdy"].state, "running")
