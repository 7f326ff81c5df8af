"""Views that join a stream with static data."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from tests.analyze.conftest import Live, Load
    from tests.conftest import Eventually

VIEWS = """
app.stream("orders", schema="city STRING")

@app.view(key=["country"])
def by_country(orders: DataFrame) -> DataFrame:
    rows = [(f"city {number}", f"country {number % 2}") for number in range(2000)]
    countries = orders.sparkSession.createDataFrame(rows, "city STRING, country STRING")
    joined = orders.join(F.broadcast(countries.dropDuplicates(["city"])), "city")
    return joined.groupBy("country").agg(F.count("*").alias("n"))

app.view("by_city", key=["city"], sql="SELECT city, count(*) AS n FROM orders GROUP BY city")
"""


@pytest.mark.timeout(400)
def test_a_grouped_join_with_static_data_is_running_before_its_first_commit(
    live: Live, pipeline: Load
) -> None:
    seldom = {"analyze": live.settings.analyze.model_copy(update={"checkpoint_interval": "1 hour"})}
    live.settings = live.settings.model_copy(update=seldom)
    live.start(pipeline(VIEWS))
    assert {query.plan.mode for query in live.planned} == {"real_time"}
    live.send("orders", {"city": "city 4"}, {"city": "city 6"}, {"city": "nowhere"})
    live.gives(lambda: [row["n"] for row in live.table("by_country").values()], [2])
    assert live.queries is not None
    queries = live.queries
    views = ("by_country", "by_city")
    live.until(lambda: all(queries.state_of(view)[0] == "running" for view in views), 60)
    assert {view: queries.counts()[view].restarts for view in views} == dict.fromkeys(views, 0)


def test_reading_reference_data_takes_few_task_slots(spark: SparkSession) -> None:
    static = spark.createDataFrame([(number,) for number in range(2000)], "id LONG")
    assert static._jdf.queryExecution().toRdd().getNumPartitions() <= 2


@pytest.mark.timeout(400)
def test_a_query_waits_for_task_slots_that_another_job_uses(
    live: Live, pipeline: Load, spark: SparkSession, eventually: Eventually
) -> None:
    slowly = "coalesce(java_method('java.lang.Thread', 'sleep', 20L), '') <> 'never'"
    busy = spark.range(0, 24_000, 1, 24).where(slowly)  # in every slot, for 20 s
    job = threading.Thread(target=busy.write.format("noop").mode("overwrite").save)
    tracker = spark.sparkContext.statusTracker()
    job.start()
    eventually(tracker.getActiveStageIds)
    live.start(pipeline(VIEWS))
    assert live.queries is not None
    assert tracker.getActiveStageIds(), "the slots are free too soon"
    queries = live.queries
    live.until(lambda: queries.state_of("by_city")[0] == "running", 240)
    job.join()
    assert queries.counts()["by_city"].restarts == 0
