"""Real Ivy, with a folder of files in the place of the network."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.errors import JarError
from millstream.runtime.jars import Jar, jars, locked

pytestmark = pytest.mark.java

DESCRIPTION = """<ivy-module version="2.0">
  <info organisation="{0}" module="{1}" revision="{2}"/>
  <configurations><conf name="default"/></configurations>
  <publications><artifact name="{1}" type="jar" ext="jar" conf="default"/></publications>
</ivy-module>"""
NO_NETWORK = "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1 -Djava.net.useSystemProxies=false"


def offer(repository: Path, jar: Jar, content: Path | bytes) -> None:
    """Put a jar where Ivy looks before it asks the network."""
    organisation, name, version = jar.coordinates.split(":")
    folder = repository / organisation / name / version
    for kind in ("ivys", "jars"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    (folder / "ivys" / "ivy.xml").write_text(DESCRIPTION.format(organisation, name, version))
    data = content if isinstance(content, bytes) else content.read_bytes()
    (folder / "jars" / f"{name}.jar").write_bytes(data)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the connector's jars, no other network, and an empty cache."""
    folder = tmp_path / "repository"
    for jar, path in zip(locked("connector"), jars("connector"), strict=True):
        offer(folder, jar, path)
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path / "cache"))
    options = f"{NO_NETWORK} -Divy.shared.default.root={folder}"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", options)
    return folder


def test_missing_jars_are_fetched_with_progress_and_then_taken_from_the_cache(
    repository: Path, tmp_path: Path
) -> None:
    told: list[str] = []
    first = jars("connector", told.append)
    assert [path.name for path in first] == [jar.file_name for jar in locked("connector")]
    assert told[0].startswith("fetching the connector's jars")
    shutil.rmtree(repository)
    assert jars("connector") == first
    cache = tmp_path / "cache" / "jars"
    assert {path.name for path in cache.iterdir()} == {*(p.name for p in first), "fetch.lock"}


def test_a_damaged_jar_is_fetched_again_and_the_others_are_left_alone(repository: Path) -> None:
    damaged, *others = jars("connector")
    good = damaged.read_bytes()
    before = [path.stat().st_mtime_ns for path in others]
    damaged.write_bytes(good[:-1])
    told: list[str] = []
    jars("connector", told.append)
    assert damaged.read_bytes() == good
    assert f"{damaged.name} in {damaged.parent} is damaged" in told[0]
    assert [path.stat().st_mtime_ns for path in others] == before


def test_a_jar_that_is_not_the_locked_one_is_refused_and_not_kept(
    repository: Path, tmp_path: Path
) -> None:
    jar = locked("connector")[0]
    offer(repository, jar, b"something else")
    with pytest.raises(JarError, match=f"refused {jar.coordinates}: SHA-256 is .*{jar.sha256}"):
        jars("connector")
    assert not (tmp_path / "cache" / "jars" / jar.file_name).exists()


def test_no_network_is_one_line_that_says_so_and_what_to_do(repository: Path) -> None:
    shutil.rmtree(repository)
    with pytest.raises(
        JarError, match=r"no connection to Ivy's repository \(.*\); check the network"
    ) as caught:
        jars("connector")
    assert "\n" not in str(caught.value)


def test_a_cache_that_cannot_be_written_is_an_error_that_names_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path / "file"))
    with pytest.raises(JarError, match=r"cannot store jars in .*MILLSTREAM_CACHE"):
        jars("connector")


def test_processes_that_want_the_same_jars_at_once_all_get_them(repository: Path) -> None:
    code = "from millstream.runtime.jars import jars; print(*jars('connector'))"
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(3)
    ]
    answers = {process.communicate(timeout=120)[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(answers) == 1


def test_the_lock_holds_what_the_broker_and_spark_need() -> None:
    names = {jar.coordinates.split(":")[1] for jar in (*locked("broker"), *locked("connector"))}
    assert {"kafka_2.13", "log4j-slf4j-impl", "spark-sql-kafka-0-10_2.13"} <= names
    assert all(len(jar.sha256) == 64 for jar in (*locked("broker"), *locked("connector")))
