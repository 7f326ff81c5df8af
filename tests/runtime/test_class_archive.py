"""Archives of real JVMs, of a tool that ends at once."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millstream.errors import MachineError
from millstream.runtime.class_archive import ClassArchive
from millstream.runtime.jars import jars
from millstream.runtime.java import find_java

pytestmark = pytest.mark.java

TOOL = "kafka.tools.StorageTool"
ID = 23  # characters of a cluster's id, with its line's end


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClassArchive:
    """One of the broker's class path, in a cache of its own."""
    files = jars("broker")
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path / "cache"))
    return ClassArchive("tool", find_java(), files)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClassArchive]:
    """One that a JVM has left."""
    files = jars("broker")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLSTREAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        archive = ClassArchive("tool", find_java(), files)
        assert archive.options() == []
        with archive.making() as options:
            start(archive, *options)
            assert archive.find() is None
        yield archive


def start(archive: ClassArchive, *options: str) -> None:
    """A JVM that says what the tool says, and no word more."""
    classpath = ":".join(map(str, archive.jars))
    command = [
        str(archive.java),
        "-XX:+UseSerialGC",
        *options,
        "-cp",
        classpath,
        TOOL,
        "random-uuid",
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (len(answer.stdout), answer.stderr) == (ID, "")


def test_a_jvm_takes_its_classes_from_the_archive_that_one_before_it_left(
    made: ClassArchive, tmp_path: Path
) -> None:
    start(made, *made.options(), f"-Xlog:class+load=info:file={tmp_path / 'loaded'}")
    loaded = (tmp_path / "loaded").read_text().splitlines()
    assert next(line for line in loaded if f" {TOOL} " in line).endswith(
        "shared objects file (top)"
    )
    with made.making() as options:  # it is there
        assert options == made.options()


def test_an_archive_that_does_not_fit_is_passed_over_without_a_word(made: ClassArchive) -> None:
    other = ClassArchive("tool", made.java, [made.jars[-1], *made.jars])
    assert other.options() == []
    start(other, *made.options())


@pytest.mark.parametrize("damage", [b"", b"half", b"whole anD well"])
def test_an_archive_that_is_damaged_is_not_used_and_is_made_anew(
    archive: ClassArchive, damage: bytes
) -> None:
    make(archive)
    file = archive.find()
    assert file is not None
    file.write_bytes(damage)
    assert archive.options() == []
    assert make(archive)
    assert archive.find() == file


def test_a_jar_or_a_java_that_was_replaced_has_no_archive(
    archive: ClassArchive, tmp_path: Path
) -> None:
    jar, java = tmp_path / "some.jar", tmp_path / "java"
    jar.touch()
    java.touch()
    for number, file in enumerate((jar, java, jar)):
        assert make(ClassArchive("some", java, [jar]))
        os.utime(file, ns=(0, number))
        assert ClassArchive("some", java, [jar]).find() is None


def make(archive: ClassArchive) -> bool:
    """Stand in for a JVM that leaves an archive; whether it was asked to."""
    with archive.making() as options:
        asked = options[0].startswith("-XX:ArchiveClassesAtExit=")
        if asked:
            time.sleep(0.1)
            Path(options[0].partition("=")[2]).write_text("whole and well")
    return asked


def test_of_many_who_make_it_at_once_one_does_and_the_others_have_it(archive: ClassArchive) -> None:
    with ThreadPoolExecutor(3) as threads:
        assert sorted(threads.map(make, [archive] * 3)) == [False, False, True]


def test_a_jvm_that_leaves_nothing_is_an_error_and_leaves_nothing(archive: ClassArchive) -> None:
    with pytest.raises(MachineError, match="no archive of the classes of tool"), archive.making():
        pass
    assert archive.find() is None
    assert make(archive)


def test_a_cache_that_cannot_be_written_is_an_error_of_the_maker_alone(
    archive: ClassArchive, tmp_path: Path
) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(OSError, match="director"), archive.making():
        pass
    assert archive.options() == []


def test_what_nobody_used_for_a_month_goes_when_another_is_made(
    archive: ClassArchive, tmp_path: Path
) -> None:
    make(archive)
    mine = archive.find()
    assert mine is not None
    unused, used, left = (
        tmp_path / "cache/classes" / f"tool-{n}" for n in ("1.jsa", "2.jsa", "3.new")
    )
    for file in (unused, used, left):
        file.touch()
    for file in (unused, mine):
        os.utime(file, (0, time.time() - 40 * 24 * 3600))
    assert archive.options()  # which is a use
    make(ClassArchive("tool", archive.java, archive.jars[1:]))
    assert [file.exists() for file in (mine, unused, used, left)] == [True, False, True, False]
