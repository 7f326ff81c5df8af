"""The options of the driver's JVM."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.analyze.spark.driver import class_archive, executor_options, java_options
from millstream.analyze.spark.session import java_process


def test_spark_starts_from_the_class_archive(spark: SparkSession) -> None:
    mapped = Path(f"/proc/{java_process(spark)}/maps").read_text()
    assert str(class_archive().find()) in mapped


def test_a_cache_path_with_a_space_is_one_option() -> None:
    assert java_options(["-XX:SharedArchiveFile=/a b"]).endswith(' "-XX:SharedArchiveFile=/a b"')


FIRST_ONLY = "-XX:TieredStopAtLevel=1"


@pytest.mark.parametrize(
    ("cores", "setting", "both"),
    [(2, None, False), (4, None, True), (2, True, True), (16, False, False), (None, None, False)],
)
def test_the_second_compiler_depends_on_cores_or_the_setting(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, setting: bool | None, both: bool
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert (FIRST_ONLY not in java_options([], setting).split()) == both
    assert (FIRST_ONLY not in executor_options(setting).split()) == (setting is not False)
