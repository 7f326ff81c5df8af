from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import MachineError
from millstream.runtime.java import OLDEST, find_java, java_version


def pretend_java(folder: Path, answer: str) -> None:
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    java.chmod(0o755)


@pytest.mark.java
def test_the_java_of_this_machine_is_found_and_new_enough() -> None:
    assert java_version(find_java()) >= OLDEST


def test_without_java_the_error_says_where_it_was_looked_for_and_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MachineError, match=f"{tmp_path}/bin.*openjdk-17"):
        find_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError, match="no `java` in PATH"):
        find_java()


@pytest.mark.parametrize(
    ("answer", "version"),
    [('openjdk version "1.8.0_392"', "8"), ('java version "11.0.2" 2019', "11"), ("?", "unknown")],
)
def test_a_java_that_is_too_old_is_refused_with_its_version(
    answer: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_java(tmp_path, answer)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MachineError, match=f"it is Java .*{version}"):
        find_java()
