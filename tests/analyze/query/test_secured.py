"""Views over a Kafka cluster that requires a password."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.analyze.conftest import Live
from tests.log.guarded import guarded_broker


def test_spark_reads_and_writes_with_a_password(
    spark: SparkSession, pipeline: Any, tmp_path: Path
) -> None:
    with guarded_broker(tmp_path / "kafka") as as_ann:
        live = Live(spark, as_ann("right"), tmp_path / "home")
        try:
            live.start(
                pipeline("""
app.stream("orders", schema="id LONG, city STRING")
app.view("by_city", key=["city"], sql="SELECT city, count(*) AS n FROM orders GROUP BY city")
""")
            )
            live.send("orders", {"id": 1, "city": "Bern"}, {"id": 2, "city": "Bern"})
            live.gives(lambda: live.table("by_city"), {'["Bern"]': {"city": "Bern", "n": 2}})
        finally:
            live.stop()
