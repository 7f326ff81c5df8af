"""The planner's decisions, and its errors about mistakes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream.analyze.planning.planner import Planner, enough_slots
from millstream.analyze.service import check_slots
from millstream.errors import MachineError, PipelineError
from millstream.pipeline.load import load
from millstream.settings import Settings

STREAMS = """
app.stream("a", schema="city STRING, n LONG, at TIMESTAMP", event_time="at", lateness="1 minute")
app.stream("b", schema="city STRING, n LONG, at TIMESTAMP", event_time="at", lateness="1 minute")
"""


def function(query: str, options: str = "") -> str:
    return f"""{STREAMS}
twice = F.udf(lambda n: 2 * n, "long", useArrow=False)

@app.view({options})
def v(a: DataFrame, b: DataFrame) -> DataFrame:
    static = a.sparkSession.createDataFrame([("x", 1)], "city STRING, x INT")
    return {query}
"""


REAL_TIME = {
    "a filter": ("", "a.filter('n > 1')"),
    "a window": ("key=['window']", "a.groupBy(F.window('at', '1 hour')).count()"),
    "a union": ("", "a.union(b)"),
    "broadcast data": ("", "a.join(F.broadcast(static), 'city')"),
}
MICRO_BATCH = {
    "a Python UDF": (
        "",
        "a.select(twice('n').alias('m'))",
        "it calls a Python function",
        "position",
    ),
    "two streams joined": ("", "a.join(b.select('city'), 'city')", "it joins two streams", "batch"),
    "data that is not broadcast": (
        "",
        "a.join(static.hint('merge'), 'city')",
        r"not broadcast; wrap that in F.broadcast",
        "batch",
    ),
    "a session window": (
        "key=['session_window', 'city']",
        "a.groupBy(F.session_window('at', '5 minutes'), 'city').count()",
        "session windows; its rows come when they are final",
        "revision",
    ),
    "dropDuplicatesWithinWatermark": (
        "",
        "a.dropDuplicatesWithinWatermark(['city'])",
        "dropDuplicatesWithinWatermark",
        "position",
    ),
    "an input read twice": ("", "a.union(a)", "the same input twice", "position"),
    "a view that asks for it": ("mode='micro_batch'", "a", "asked for", "position"),
}


@pytest.mark.parametrize(("options", "query"), REAL_TIME.values(), ids=REAL_TIME.keys())
def test_a_query_runs_in_real_time_mode_if_spark_allows_it(
    planned: Any, options: str, query: str
) -> None:
    assert planned(function(query, options))["v"].plan.mode == "real_time"


@pytest.mark.parametrize(
    ("options", "query", "reason", "lineage"), MICRO_BATCH.values(), ids=MICRO_BATCH.keys()
)
def test_other_queries_run_in_micro_batches_and_the_plan_gives_the_reason(
    planned: Any, options: str, query: str, reason: str, lineage: str
) -> None:
    plan = planned(function(query, options))["v"].plan
    assert plan.mode == "micro_batch"
    assert re.search(reason, plan.reason)
    assert plan.lineage == lineage


def test_slots_are_the_source_partitions_and_the_tasks_of_each_shuffle(planned: Any) -> None:
    body = f"""{STREAMS}
app.view("filtered", sql="SELECT city FROM a")
app.view("counted", key=["city"], sql="SELECT city, count(*) AS n FROM a GROUP BY city")
app.view("both", key=["city"], sql="SELECT city, count(*) AS n FROM "
         "(SELECT city FROM a UNION ALL SELECT city FROM b) GROUP BY city")
app.view("slow", sql="SELECT city FROM a", mode="micro_batch")
"""
    settings = {"log": {"partitions": 4}, "analyze": {}}
    slots = {name: query.plan.slots for name, query in planned(body, **settings).items()}
    assert slots == {"filtered": 4, "counted": 5, "both": 9, "slow": 1}


def test_micro_batches_are_limited_if_no_partition_can_overtake_another(planned: Any) -> None:
    body = f"""{STREAMS}
app.stream("timed", schema="city STRING, at TIMESTAMP", event_time="at")
app.stream("plain", schema="city STRING")
COUNT = "SELECT city, count(*) AS n FROM"
app.view("live", key=["city"], sql=f"{{COUNT}} a GROUP BY city")
app.view("batches", key=["city"], sql=f"{{COUNT}} plain GROUP BY city", mode="micro_batch")
app.view("hourly", key=["window"], mode="micro_batch",
         sql="SELECT window(at, '1 hour') AS window, count(*) AS n FROM timed GROUP BY 1")
"""

    def in_pieces(partitions: int) -> list[str]:
        settings = {"log": {"partitions": partitions}, "analyze": {"batch_events": 77}}
        plans = {
            name: query.rows._jdf.queryExecution().analyzed().toString()
            for name, query in planned(body, **settings).items()
        }
        return [name for name, plan in plans.items() if "maxoffsetspertrigger=77" in plan.lower()]

    assert in_pieces(partitions=1) == ["batches", "hourly"]
    assert in_pieces(partitions=2) == ["batches"]


def test_a_replay_keeps_all_state_if_a_partition_can_overtake_another(
    spark: SparkSession, pipeline: Any
) -> None:
    app = pipeline("""
app.stream("timed", schema="city STRING, at TIMESTAMP", event_time="at")
app.stream("plain", schema="city STRING")
app.view("counted", key=["city"], sql="SELECT city, count(*) AS n FROM plain GROUP BY city")
app.view("hourly", key=["window"],
         sql="SELECT window(at, '1 hour') AS window, count(*) AS n FROM timed GROUP BY 1")
app.view("sessions", key=["window", "city"], sql="SELECT session_window(at, '1 hour') AS window, "
         "city, count(*) AS n FROM timed GROUP BY session_window(at, '1 hour'), city")
""")

    def plans(partitions: int, replays: bool) -> dict[str, str]:
        settings = Settings(log={"partitions": partitions}, analyze={"batch_events": 77})
        planner = Planner(spark, app, settings, replays=replays)
        return {
            query.view.name: query.rows._jdf.queryExecution().analyzed().toString().lower()
            for query in planner.queries()
        }

    def in_pieces(found: dict[str, str]) -> list[str]:
        return [name for name, plan in found.items() if "maxoffsetspertrigger=77" in plan]

    def delays(found: dict[str, str]) -> dict[str, str]:
        delay = re.compile(r"eventtimewatermark .*")
        return {name: " ".join(delay.findall(plan)) for name, plan in found.items()}

    one = plans(1, replays=True)
    assert in_pieces(one) == ["counted", "hourly", "sessions"]
    several, live = plans(2, replays=True), plans(2, replays=False)
    assert in_pieces(several) == ["counted", "hourly"]
    assert in_pieces(live) == []
    days = re.compile(r"\b36500 days|876000 hours|3153\d{9}")
    assert [name for name, delay in delays(several).items() if days.search(delay)] == ["hourly"]
    assert [name for name, delay in delays(one).items() if days.search(delay)] == []


def test_too_few_slots_are_an_error_with_the_number_needed(spark: SparkSession) -> None:
    check_slots(spark, 24)
    with pytest.raises(MachineError, match="need 25 task slots at once, but Spark has 24"):
        check_slots(spark, 25)


def test_the_slots_that_a_local_session_gets_suffice(spark: SparkSession, pipeline: Any) -> None:
    app = pipeline(f"""{STREAMS}
app.view("one", key=["city", "n"], sql="SELECT DISTINCT city, n FROM a")
app.view("two", key=["city"], sql="SELECT city, count(*) AS c FROM one GROUP BY city",
         reads={{"one": "changes"}})
""")
    settings = Settings()
    needed = Planner(spark, app, settings).plan().slots
    assert needed <= enough_slots(app, settings, lambda topic: settings.log.partitions)


MISTAKES = {
    "a key that is not in the result": (
        function("a.select('city')", "key=['cty']"),
        "key column 'cty' that is not in its result; did you mean 'city'?",
        "@app.view",
    ),
    "groups without a key": (
        function("a.groupBy('city', F.window('at', '1 hour')).count()"),
        "has no key; write key=['city', 'window']",
        "@app.view",
    ),
    "a key that lacks a group": (
        function("a.groupBy('city', F.window('at', '1 hour')).count()", "key=['city']"),
        "groups by 'window' too: rows of different groups would replace each other",
        "@app.view",
    ),
    "a key that lacks one of two fields": (
        f"{STREAMS}\napp.view('v', key=['m'], sql='SELECT n % 2 AS m, n % 3 AS t, count(*) AS c "
        "FROM a GROUP BY n % 2, n % 3')",
        "groups by 't' too",
        "app.view('v'",
    ),
    "one group without a key": (
        function("a.agg(F.count('*').alias('n'))"),
        "add a column F.lit('all').alias('scope'), and write key=['scope']",
        "@app.view",
    ),
    "an unknown column": (
        function("(a\n        .filter('n > 1')\n        .select('cty'))"),
        "view 'v' has no column 'cty' to use; did you mean 'city'?",
        ".select('cty')",
    ),
    "a column unknown to SQL": (
        f"{STREAMS}\napp.view('v', sql='SELECT cty FROM a')",
        "view 'v' has no column 'cty' to use; did you mean 'city'?",
        "app.view('v'",
    ),
    "an exception": (function("a.filter(1 / 0)"), "ZeroDivisionError: division by zero", "1 / 0"),
    "no DataFrame": (function("a.columns"), "returns a list, not a DataFrame", "@app.view"),
    "two columns of a name": (
        function("a.select('city', 'n', F.upper('city').alias('city'))"),
        "has two columns 'city'",
        "@app.view",
    ),
    "the name of a row's state": (
        function("a.withColumn('_state', F.lit(1))"),
        "names a column '_state', which is one of ours",
        "@app.view",
    ),
    "a name of ours": (
        function("a.withColumn('_revision', F.lit(1))"),
        "names a column '_revision', which is one of ours",
        "@app.view",
    ),
    "a name of ours in other letters": (
        function("a.withColumn('_Position', F.lit(1))"),
        "names a column '_Position', which is one of ours",
        "@app.view",
    ),
    "an exit": (
        function("exit(3)"),
        "view 'v' ends the process; leave the exit out",
        "exit(3)",
    ),
    "rows that are not there yet": (
        function("a.filter(F.lit(a.count() > 1))"),
        "asks for rows while it is built, when there are none; leave show(), count()",
        "a.count()",
    ),
    "real-time mode that cannot be": (
        function("a.join(b.select('city'), 'city')", "mode='real_time'"),
        "cannot run in real-time mode: it joins two streams",
        "@app.view",
    ),
    "what no stream can": (
        function("a.orderBy('n')"),
        'out, and sort the view\'s rows in a named query: app.query("v_sorted", '
        'sql="SELECT * FROM v ORDER BY … LIMIT :n", n=100)',
        "@app.view",
    ),
    "sessions without another group": (
        function("a.groupBy(F.session_window('at', '1 hour')).count()", "key=['session_window']"),
        "groups by sessions and nothing else, which Spark cannot keep up to date; group by what",
        "@app.view",
    ),
    "no stream": (function("static"), "does not use its input as a stream", "@app.view"),
}


@pytest.mark.parametrize(("body", "message", "at"), MISTAKES.values(), ids=MISTAKES.keys())
def test_an_error_names_the_mistake_the_line_and_the_remedy(
    planned: Any, tmp_path: Path, body: str, message: str, at: str
) -> None:
    with pytest.raises(PipelineError) as raised:
        planned(body)
    error = raised.value
    assert message in str(error)
    assert error.file == str(tmp_path / "pipeline.py")
    assert at in Path(error.file).read_text().splitlines()[error.line - 1]
    assert "\n" not in str(error)
    assert "SQLSTATE" not in str(error)


def test_a_view_of_single_events_rows_reads_the_stream_itself(planned: Any, app_name: str) -> None:
    views = planned(f"""{STREAMS}
app.view("large", sql="SELECT city, n FROM a WHERE n > 10")
app.view("counted", key=["city"], sql="SELECT city, count(*) AS n FROM large GROUP BY city")
""")
    assert views["counted"].plan.reads == (f"{app_name}.stream.a",)
    assert views["counted"].plan.lineage == "revision"


def test_a_table_s_changes_are_read_from_its_topic(planned: Any, app_name: str) -> None:
    views = planned(f"""{STREAMS}
app.view("counted", key=["city"], sql="SELECT city, count(*) AS n FROM a GROUP BY city")
app.view("alarms", sql="SELECT city, n FROM counted WHERE n > 10", reads={{"counted": "changes"}})
""")
    plan = views["alarms"].plan
    assert plan.reads == (f"{app_name}.view.counted",)
    assert (plan.lineage, plan.mode) == ("position", "real_time")


def test_a_column_of_a_table_whose_changes_are_read_may_be_called_key(planned: Any) -> None:
    views = planned(f"""{STREAMS}
app.view("counted", key=["Key"], sql="SELECT city AS Key, count(*) AS _key FROM a GROUP BY city")
app.view("alarms", sql="SELECT Key, _key FROM counted", reads={{"counted": "changes"}})
""")
    assert [column.name for column in views["alarms"].plan.columns] == ["Key", "_key"]


def test_a_view_with_reference_data_runs_in_micro_batches(planned: Any) -> None:
    body = f"""{STREAMS}
app.view("totals", key=["city"], sql="SELECT city, count(*) AS total FROM a GROUP BY city")

@app.view(reads={{"totals": "reference"}}MODE)
def shares(b: DataFrame, totals: DataFrame) -> DataFrame:
    return b.join(totals, "city", "left").select("city", "n", "total")
"""
    plan = planned(body.replace("MODE", ""))["shares"].plan
    assert (plan.mode, plan.lineage) == ("micro_batch", "position")
    assert "looks up totals" in plan.reason
    assert planned(body.replace("MODE", ", mode='real_time'"))["shares"].plan.mode == "real_time"


def test_a_generation_changes_with_the_query_only(planned: Any) -> None:
    def generation(sql: str, options: str = "") -> str:
        found = planned(f"{STREAMS}\napp.view('v', sql='{sql}'{options})")["v"].plan.generation
        assert re.fullmatch("[0-9a-f]{16}", found)
        return str(found)

    one = generation("SELECT city FROM a WHERE n > 1")
    assert generation("SELECT  city  FROM a\\nWHERE n > 1") == one
    assert generation("SELECT city FROM a WHERE n > 1", ", keep='1 day', key=['city']") != one
    others = {
        one,
        generation("SELECT city FROM a WHERE n > 2"),
        generation("SELECT city FROM b WHERE n > 1"),
        generation("SELECT city AS c FROM a WHERE n > 1"),
        generation("SELECT city FROM a WHERE n > 1", ", mode='micro_batch'"),
    }
    assert len(others) == 5


def test_a_changed_python_function_changes_the_generation(planned: Any) -> None:
    body = function("a.select(twice('n').alias('m'))")
    before = planned(body)["v"].plan.generation
    assert planned(body)["v"].plan.generation == before
    assert planned(body.replace("2 * n", "3 * n"))["v"].plan.generation != before


def test_generations_are_those_of_existing_checkpoints(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.sql"
    file.write_text("""
CREATE APP clicks;
CREATE STREAM clicks (page STRING NOT NULL, visitor STRING, at TIMESTAMP)
WITH (key = 'page', event_time = 'at', lateness = '10 minutes');
CREATE VIEW clicks_per_minute
WITH (key = ('window', 'page'), keep = '1 day', ledger = ('clicks')) AS
SELECT window(at, '1 minute') AS window, page, count(*) AS clicks
FROM clicks
GROUP BY window(at, '1 minute'), page;
CREATE VIEW site_per_minute
WITH (key = 'window', keep = '1 day', trigger = 'at the watermark') AS
SELECT window(at, '1 minute') AS window, count(*) AS clicks
FROM clicks
GROUP BY window(at, '1 minute');
""")
    queries = Planner(spark, load(file), Settings()).queries()
    # Another value would make every home with such a view compute it again from the log.
    assert {query.view.name: query.plan.generation for query in queries} == {
        "clicks_per_minute": "4a3d847230e7952e",
        "site_per_minute": "9629f81017bb66c1",
    }
