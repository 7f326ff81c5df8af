"""The patched class that binds the servers of the real-time shuffle to one address."""

from __future__ import annotations

import logging
import subprocess
import zipfile
from pathlib import Path

import pytest

from millstream.analyze.settings import AnalyzeSettings
from millstream.analyze.spark.bind_address import (
    NotPatched,
    bind_by_property,
    bound_jar,
    make_jar,
    why_unbound,
)
from millstream.analyze.spark.driver import class_archive, spark_jars
from millstream.analyze.spark.session import configuration
from millstream.runtime.java import find_java

CLASS = "org/apache/spark/network/TransportContext.class"


def original() -> bytes:
    (jar,) = spark_jars().glob("spark-network-common_*.jar")
    with zipfile.ZipFile(jar) as opened:
        return opened.read(CLASS)


@pytest.mark.java
def test_the_changed_class_is_one_that_java_loads_and_verifies(tmp_path: Path) -> None:
    jar = make_jar(spark_jars(), tmp_path)
    # Java verifies a class before it looks for its main method, which this one lacks.
    command = [
        str(find_java()),
        "-Xverify:all",
        "-Xlog:class+load",
        "-cp",
        f"{jar}:{spark_jars()}/*",
    ]
    name = "org.apache.spark.network.TransportContext"
    answer = subprocess.run([*command, name], capture_output=True, text=True, timeout=120)
    assert f"{name} source: file:{jar}" in answer.stdout, answer.stderr
    assert f"Main method not found in class {name}" in answer.stderr


def test_the_jar_is_made_once_and_repaired_if_damaged(tmp_path: Path) -> None:
    jar = make_jar(spark_jars(), tmp_path)
    before = jar.stat().st_mtime_ns
    assert make_jar(spark_jars(), tmp_path) == jar
    assert jar.stat().st_mtime_ns == before, "class archives would not fit it"
    jar.write_bytes(b"half")
    assert make_jar(spark_jars(), tmp_path) == jar
    with zipfile.ZipFile(jar) as opened:
        assert opened.read(CLASS) == bind_by_property(original())


@pytest.mark.parametrize("damage", [b"", b"no class", original()[:2000], original()[:-20]])
def test_an_unknown_class_is_not_patched(damage: bytes) -> None:
    with pytest.raises(NotPatched):
        bind_by_property(damage.replace(b"createServer", b"createSerber"))


def test_a_patched_class_is_not_patched_again() -> None:
    with pytest.raises(NotPatched, match="is not the expected one"):
        bind_by_property(bind_by_property(original()))


def test_without_the_class_spark_starts_and_a_warning_names_the_open_ports(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "millstream.analyze"):
        assert bound_jar(tmp_path) is None
    assert "listens on all addresses" in caplog.text
    assert "firewall" in caplog.text
    assert "there is no spark-network-common jar" in why_unbound(tmp_path)
    assert why_unbound(spark_jars()) == ""


@pytest.mark.java
def test_the_patched_jar_is_first_in_the_drivers_class_path() -> None:
    key = "spark.driver.extraClassPath"
    ours = configuration(AnalyzeSettings(), 2)[key]
    assert ours.endswith(".jar")
    assert class_archive().jars[0] == Path(ours)
    both = configuration(AnalyzeSettings(spark={key: "/opt/theirs.jar"}), 2)[key]
    assert both == f"{ours}:/opt/theirs.jar"
    assert key not in configuration(AnalyzeSettings(spark_master="spark://there:7077"), 2)
