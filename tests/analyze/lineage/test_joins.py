"""Joins of streams and deduplication: each event is in all its rows, or in the late topic."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.analyze.conftest import SETTINGS
from tests.conftest import Eventually

from millstream.analyze.planning.planner import Planner
from millstream.analyze.query.queries import Queries
from millstream.analyze.recovery.progress import dropped_by_watermark
from millstream.analyze.verify.verify import verify
from millstream.analyze.watermarks.late_events import LateEvents
from millstream.errors import PipelineError
from millstream.log.consumer import bounds, read_range
from millstream.log.settings import LogSettings
from millstream.log.topic_names import late_topic, stream_topic
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.settings import Settings
from millstream.simulation import Predicted, SentEvent, joined, late_records, predict
from millstream.simulation.faults import in_order
from millstream.simulation.windows import Sliding, Tumbling, Windows, window_json
from millstream.testing import Logged, run
from millstream.values.event import ID, WATERMARK

SEED = int(os.environ.get("JOINS_SEED", "3"))
SECOND, MINUTE = 1_000, 60_000
START = time.time_ns() // 1_000_000 // MINUTE * MINUTE - 60 * MINUTE
SPAN, EVENTS, PIECES = 10 * MINUTE, 120, 5
LATENESS = {"clicks": 2 * MINUTE, "orders": 30 * SECOND}
BOUND = 90 * SECOND
STREAMS = """
app.stream("clicks", schema="id STRING, user STRING, at TIMESTAMP", event_time="at",
           lateness="2 minutes")
app.stream("orders", schema="id STRING, user STRING, at TIMESTAMP", event_time="at",
           lateness="30 seconds")
"""
PIPELINE = f"""{STREAMS}
PAIRS = '''
    SELECT c.at, o.at AS ordered, concat_ws('-', c.id, o.id) AS pair
    FROM clicks c {{}} JOIN orders o
    ON c.user = o.user AND o.at BETWEEN c.at AND c.at + INTERVAL 90 SECONDS'''
ROWS = ", concat_ws(' ', sort_array(collect_list(pair))) AS pairs FROM ({{}}) GROUP BY 1"
app.view("by_order", key=["window"],
         sql="SELECT window(ordered, '1 minute') AS window" + ROWS.format(PAIRS.format("")))
app.view("all_clicks", key=["window"],
         sql="SELECT window(at, '2 minutes', '1 minute') AS window"
         + ROWS.format(PAIRS.format("LEFT")))

@app.view(mode="micro_batch")
def once(clicks: DataFrame) -> DataFrame:
    return clicks.dropDuplicates(["id"])
"""
JOINS = ("by_order", "all_clicks")
VIEWS = {"clicks": (*JOINS, "once"), "orders": JOINS}
TIMELESS = {"id": "timeless", "user": "x"}
Pairs = list[tuple[Predicted, Predicted | None]]


def random_events(stream: str, rng: Random) -> list[Predicted]:
    """Random events, many of which come about as late as is allowed."""
    sendings, lateness = [], LATENESS[stream]
    for number in range(EVENTS):
        at = START + rng.randrange(SPAN)
        delay = rng.choice((0, 0, rng.randrange(lateness), lateness, rng.randrange(3 * lateness)))
        name = f"{stream[0]}{number}"
        event = {"id": name, "user": rng.choice("xyz"), "at": at}
        sendings.append(SentEvent(name, at, at + delay, event))
    return list(predict(in_order(sendings)))


def in_parts(
    events: Mapping[str, list[Predicted]], rng: Random
) -> Iterator[dict[str, list[Predicted]]]:
    """The events in parts of random length, so that one stream is ahead of the other."""
    cuts = {s: sorted(rng.randrange(len(of)) for _ in range(PIECES)) for s, of in events.items()}
    for number in range(PIECES + 1):
        yield {
            s: of[([0, *cuts[s]])[number] : ([*cuts[s], None])[number]] for s, of in events.items()
        }


def matches(events: Mapping[str, list[Predicted]], *, outer: bool = False) -> Pairs:
    """The joined pairs of the events that are not late, by the rule of docs/explanation/time.md."""
    clicks, orders = (joined(events[each], LATENESS[each]) for each in ("clicks", "orders"))
    found: Pairs = [(c, o) for c, o in product(clicks, orders) if is_pair(c, o, BOUND)]
    if outer:
        matched = {c.sending.id for c, _ in found}
        found += [(c, None) for c in clicks if c.sending.id not in matched]
    return found


def is_pair(one: Predicted, other: Predicted, bound: int) -> bool:
    same = one.sending.event["user"] == other.sending.event["user"]
    return same and one.sending.at <= other.sending.at <= one.sending.at + bound


def name_of(pair: tuple[Predicted, Predicted | None]) -> str:
    return "-".join(each.sending.id for each in pair if each is not None)


def rows(pairs: Pairs, windows: Windows, by: int = 0) -> dict[str, str]:
    """The row of each window, by the time of the pair's first or second event."""
    found: dict[str, list[str]] = {}
    for pair in pairs:
        if (event := pair[by]) is not None:
            for window in windows.of(event.sending.at):
                found.setdefault(json.dumps([window_json(window)]), []).append(name_of(pair))
    return {window: " ".join(sorted(names)) for window, names in found.items()}


def expected_rows(events: Mapping[str, list[Predicted]]) -> dict[str, dict[str, str]]:
    return {
        "by_order": rows(matches(events), Tumbling(MINUTE), by=1),
        "all_clicks": rows(matches(events, outer=True), Sliding(2 * MINUTE, MINUTE)),
    }


def closing_event(stream: str) -> list[Predicted]:
    """An event that moves Spark's watermark past all others, of another user."""
    at = START + SPAN + 30 * MINUTE
    end = {"id": f"{stream[0]}-end", "user": f"no {stream}", "at": at}
    return [Predicted(SentEvent(f"{stream[0]}-end", at, at, end), "logged")]


def send(live: Any, stream: str, events: Iterable[Predicted]) -> None:
    for each in events:
        headers = [(ID, each.sending.id)]
        if each.watermark is not None:
            headers.append((WATERMARK, str(each.watermark)))
        topic, value = stream_topic(live.app.name, stream), json.dumps(each.sending.event)
        live._producer.produce(topic, value, "k", headers=headers)
    assert live._producer.flush(10) == 0


def process_all(live: Any) -> None:
    """Wait until all events are processed, and Spark's watermark has moved."""
    live.until(lambda: live.queries.settled)
    for view in live.queries._views.values():
        view.running.processAllAvailable()


def in_late_topic(log: LogSettings, app: str, stream: str) -> dict[str, Any]:
    found = {}
    topic = late_topic(app, stream)
    for partition, (first, end) in bounds(log, topic).items():
        for record in read_range(log, topic, partition, first, end):
            headers = {name: (value or b"").decode() for name, value in record.headers}
            assert headers[ID] not in found
            missed = json.loads(headers["late_views"])
            found[headers[ID]] = {"reason": headers["late_reason"], "views": missed}
    return found


@pytest.mark.timeout(600)
def test_each_event_is_in_all_its_rows_or_in_the_late_topic(
    live: Any, pipeline: Any, eventually: Eventually
) -> None:
    rng = Random(SEED)
    events = {stream: random_events(stream, rng) for stream in LATENESS}
    # So Spark forgets as soon as it ever may.
    analyze = SETTINGS.model_copy(update={"slack": "0 seconds"})
    live.settings = Settings(log=live.settings.log, analyze=analyze)
    live.start(app := pipeline(PIPELINE))
    for number, piece in enumerate(in_parts(events, rng)):
        for stream, some in piece.items():
            send(live, stream, some)
        process_all(live)
        if number == PIECES // 2:
            live.stop()
            live.start(app)
    for stream in events:
        send(live, stream, closing_event(stream))
    send(live, "clicks", [Predicted(SentEvent("timeless", 0, 0, TIMELESS), "logged")])
    process_all(live)

    modes = {query.view.name: query.plan.output_mode for query in live.planned}
    assert modes == {"by_order": "update", "all_clicks": "append", "once": "update"}
    for view, wanted in expected_rows(events).items():
        live.gives(partial(shown, live, view), wanted)
    live.gives(partial(ids_of, live, "once"), in_time(events["clicks"]))
    running = [view.running for view in live.queries._views.values()]
    assert sum(map(dropped_by_watermark, running)) == 0
    check_late(live, events, eventually)
    for query in (each for each in live.planned if each.view.key):
        verdict = verify(query, live.settings.log, patience=5)
        assert verdict.differences == []
        assert verdict.same == len(expected_rows(events)[query.view.name])
        # The last click is in two windows, of which no later event says that they are over.
        assert verdict.not_due == (2 if query.view.name == "all_clicks" else 0)


@pytest.mark.timeout(600)
def test_a_replay_in_batches_gives_the_same_joins(
    live: Any, pipeline: Any, spark: SparkSession
) -> None:
    rng = Random(SEED)
    events = {stream: random_events(stream, rng) for stream in LATENESS}
    analyze = SETTINGS.model_copy(update={"slack": "0 seconds", "batch_events": EVENTS // 4})
    live.settings = Settings(log=live.settings.log, analyze=analyze)
    live.app = app = pipeline(PIPELINE)
    ensure_topics(app, live.settings.log)
    for stream, some in events.items():
        send(live, stream, [*some, *closing_event(stream)])
    planned = Planner(spark, app, live.settings, replays=True).queries()
    live.queries = Queries(spark, app, live.settings, live._home / "checkpoints")
    live.queries.add_all([replace(query, replays=True) for query in planned])
    ran = {}

    def have_replayed() -> bool:
        views = live.queries._views.values()
        ran.update({each.name: each.running for each in views if each.running is not None})
        return all(each.state == "replayed" for each in views)

    live.until(have_replayed)
    for query in ran.values():
        assert sum(batch["numInputRows"] > 0 for batch in query.recentProgress) >= PIECES
        assert dropped_by_watermark(query) == 0
    assert ran.keys() == {*VIEWS["clicks"]}
    for view, wanted in expected_rows(events).items():
        assert shown(live, view) == wanted
    assert ids_of(live, "once") == in_time(events["clicks"])


def shown(live: Any, view: str) -> dict[str, str]:
    return {json.dumps(json.loads(key)): row["pairs"] for key, row in live.table(view).items()}


def ids_of(live: Any, view: str) -> list[str]:
    return sorted(row["id"] for row in live.stream(view))


def in_time(clicks: list[Predicted]) -> list[str]:
    """Each click that is not late, once, and the last one."""
    return sorted([*(each.sending.id for each in joined(clicks, LATENESS["clicks"])), "c-end"])


def check_late(live: Any, events: Mapping[str, list[Predicted]], eventually: Eventually) -> None:
    """What is in no row, and nothing else, is in the late topic."""
    log, plans = live.settings.log, [query.plan for query in live.planned]
    late_events = LateEvents(log, live.app, plans, timedelta(seconds=10))
    late_events.start()
    try:
        for stream, of in events.items():
            late = late_records(of, dict.fromkeys(VIEWS[stream]), LATENESS[stream])
            assert 10 < len(late) < EVENTS / 2, "the test must have some of both"
            eventually(partial(has_read, late_events, stream))
            if stream == "clicks":
                late["timeless"] = {"reason": "broken", "views": {v: [] for v in VIEWS[stream]}}
            # Kafka may show what a transaction wrote a moment after its commit.
            live.gives(partial(in_late_topic, log, live.app.name, stream), late)
            assert late_events.counts()[stream].late == sum(
                each["reason"] == "late" for each in late.values()
            )
    finally:
        late_events.close()


def has_read(late_events: LateEvents, stream: str) -> bool:
    """All that was drawn, and what was sent after it."""
    return late_events.counts()[stream].read.get("0") == EVENTS + (2 if stream == "clicks" else 1)


def logged(name: str, seconds: float, behind: float | None = None) -> Logged:
    """An event that came when its stream was at `behind`, both in seconds after START."""
    start = datetime.fromtimestamp(START / 1000, UTC)
    event = {"id": name, "user": "x", "at": (start + timedelta(seconds=seconds)).isoformat()}
    watermark = None if behind is None else start + timedelta(seconds=behind)
    return Logged(event, start + timedelta(hours=1), watermark)


CLICKS = [
    logged("a", 10),
    logged("b", 11, 130.999),
    logged("c", 12, 132),  # too late, though its minute is open for as long again
    logged("d", 13.0009, 133),  # to the millisecond
    logged("e", 13.001, 133),
]
ORDERS = [logged("p", 20), logged("q", 21, 51), logged("r", 22, 51.999)]
LATER = "orders.toDF('order', 'user', 'then')"
SHAPES = {
    "pairs": (f"clicks.join({LATER}, 'user')", "ap ar bp br ep er"),
    "outer": (f"clicks.join({LATER}.withColumn('user', F.lit('y')), 'user', 'left')", "a b e"),
    "semi": ("clicks.join(orders, 'user', 'left_semi')", "a b e"),
    "itself": (f"orders.join({LATER}, 'user')", "pp pr rp rr"),
    "union": (
        f"clicks.unionByName(orders.withColumn('id', F.lit('o'))).join({LATER}, 'user')",
        "ap ar bp br ep er op op or or",
    ),
    "three": (
        f"clicks.join({LATER}, 'user').join(orders.toDF('last', 'user', 'end'), 'user')",
        "ap ap ar ar bp bp br br ep ep er er",
    ),
    "once": ("clicks.dropDuplicates(['id'])", "a b e"),
    "distinct": ("clicks.select('id', 'at').distinct()", "a b e"),
    # The stream itself is checked by its minute, which is open for two more.
    "beside": (
        "clicks.join(orders.select('user'), 'user').unionByName(clicks)",
        "a a a b b b c d e e e",
    ),
}


@pytest.mark.usefixtures("spark")
def test_late_events_are_left_out_of_joins_and_deduplication(pipeline: Any) -> None:
    app = pipeline(
        STREAMS
        + "".join(
            f"""
@app.view(key=["window"])
def {name}(clicks: DataFrame, orders: DataFrame) -> DataFrame:
    both = {query}
    names = F.concat_ws("", *(name for name in ("id", "order") if name in both.columns))
    windows = both.groupBy(F.window("at", "1 minute"))
    return windows.agg(F.concat_ws(" ", F.sort_array(F.collect_list(names))).alias("found"))
"""
            for name, (query, _) in SHAPES.items()
        )
    )
    views = run(app, {"clicks": CLICKS, "orders": ORDERS})
    found = {name: [row["found"] for row in rows] for name, rows in views.items()}
    assert found == {name: [expected] for name, (_, expected) in SHAPES.items()}


BETWEEN = "c.user = o.user AND o.then BETWEEN c.at AND c.at + INTERVAL 1 MINUTE"
BOUNDED = {
    "both sides": (BETWEEN, "c.at", "o.then"),
    "one side": ("c.user = o.user AND o.then >= c.at", "o.then"),
    "windows": ("c.minute = o.minute", "c.minute"),
}
ENDLESS = {
    "no time": ("c.user = o.user", "c.at"),
    "the other side": ("c.user = o.user AND o.then >= c.at", "c.at"),
    "another time": (BETWEEN, "c._received_at"),
}


def grouped_by(condition: str, *columns: str) -> str:
    views = [
        f"""
@app.view(key=["window"])
def v{number}(clicks: DataFrame, orders: DataFrame) -> DataFrame:
    clicks = clicks.select("*", "_received_at", F.window("at", "1 minute").alias("minute"))
    orders = orders.withColumnRenamed("at", "then")
    orders = orders.select("*", F.window("then", "1 minute").alias("minute"))
    both = clicks.alias("c").join(orders.alias("o"), F.expr("{condition}"))
    window = F.col("{column}") if "minute" in "{column}" else F.window("{column}", "1 minute")
    return both.groupBy(window.alias("window")).count()
"""
        for number, column in enumerate(columns)
    ]
    return STREAMS + "".join(views)


@pytest.mark.parametrize("case", BOUNDED.values(), ids=BOUNDED)
def test_a_join_with_a_time_bound_can_be_grouped_by_windows(
    planned: Any, case: tuple[str, ...]
) -> None:
    for query in planned(grouped_by(*case)).values():
        assert query.plan.late_by_event_time == LATENESS
        assert query.plan.output_mode == "update"
        assert query.plan.eviction.endswith("2 minutes after their event time are left out")


@pytest.mark.parametrize("case", ENDLESS.values(), ids=ENDLESS)
def test_a_window_over_a_join_without_a_time_bound_is_refused(
    planned: Any, case: tuple[str, ...]
) -> None:
    with pytest.raises(PipelineError, match=r"a window that never ends.*bound the time between"):
        planned(grouped_by(*case))


ONCE = {
    "the time": ("clicks.dropDuplicates(['id', 'at'])", {"clicks": 2 * MINUTE}),
    "rows with the time": ("clicks.dropDuplicates(['id'])", {"clicks": 2 * MINUTE}),
    "within the watermark": (
        "clicks.dropDuplicatesWithinWatermark(['id'])",
        {"clicks": 2 * MINUTE},
    ),
    "rows without it": ("clicks.select('id').dropDuplicates()", {}),
    "minutes": ("clicks.select(F.date_trunc('minute', 'at').alias('m')).distinct()", {}),
}


@pytest.mark.parametrize("case", ONCE.values(), ids=ONCE)
def test_deduplicated_rows_with_the_event_time_are_filtered_by_it(
    planned: Any, case: tuple[str, dict[str, int]]
) -> None:
    view = "@app.view\ndef once(clicks: DataFrame) -> DataFrame:\n    return " + case[0]
    plan = planned(f"{STREAMS}\n{view}\n")["once"].plan
    assert plan.mode == ("micro_batch" if "Within" in case[0] else "real_time")
    assert plan.late_by_event_time == case[1]
    left_out = plan.eviction.endswith("2 minutes after their event time are left out")
    assert left_out == bool(case[1])
