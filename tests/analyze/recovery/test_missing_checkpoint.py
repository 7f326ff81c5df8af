"""A view without its checkpoint reports what it starts from and what it lacks."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession
from tests.analyze.rebuild.test_rebuild import Analyze

from millstream.log.connection import admin
from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic

if TYPE_CHECKING:
    from tests.analyze.conftest import Load
    from tests.conftest import Eventually

COUNTS = """
app.stream("orders", schema="city STRING, amount LONG")
app.view("by_city", key=["city"], sql="SELECT city, count(*) AS n FROM orders GROUP BY city")
"""


@pytest.mark.timeout(400)
def test_a_view_without_its_checkpoint_reports_what_it_starts_from_and_lacks(
    spark: SparkSession,
    log_settings: LogSettings,
    tmp_path: Path,
    pipeline: Load,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    analyze = Analyze(spark, log_settings, tmp_path / "home")

    def has(number: int) -> bool:
        return bool(analyze.table("by_city").get("Bern", {}).get("n") == number)

    try:
        analyze.start(pipeline(COUNTS))
        analyze.send(*["Bern"] * 10)
        eventually(lambda: has(10), 120)
        analyze.stop()

        shutil.rmtree(tmp_path / "home" / "checkpoints")
        with caplog.at_level(logging.INFO, "millstream.analyze"):
            analyze.start(pipeline(COUNTS))
            analyze.send("Bern")
            eventually(lambda: has(11), 120)
        assert "goes on where it left off" not in caplog.text
        assert "computed again from what the log holds: all of it" in caplog.text
        assert "view by_city is unchanged, but its checkpoint" in capfd.readouterr().out
        eventually(lambda: analyze.counts("by_city").state == "running")
        assert analyze.counts("by_city").warning == "", "its answer is whole"
        analyze.stop()

        topic = stream_topic(analyze.app.name, "orders")
        client = admin(log_settings)  # answers come as long as it lives
        deleted = client.delete_records([TopicPartition(topic, 0, 4)])
        assert all(answer.result(10).low_watermark == 4 for answer in deleted.values())
        shutil.rmtree(tmp_path / "home" / "checkpoints")
        analyze.start(pipeline(COUNTS))
        eventually(lambda: has(7), 120)
        eventually(lambda: analyze.counts("by_city").warning)
        warning = analyze.counts("by_city").warning
        assert "4 older events that retention deleted are not in it" in warning
        assert "millstream rebuild by_city" in warning
        analyze.stop()

        analyze.start(pipeline(COUNTS))
        eventually(lambda: analyze.counts("by_city").warning == warning, 120)
    finally:
        analyze.stop()
