from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Run

FREE = ["--set", "log.port=0", "--set", "collect.port=0", "--set", "serve.port=0"]


def findings(run: Run, *arguments: str) -> tuple[int, dict[str, Any]]:
    outcome = run("doctor", "--json", *arguments)
    return outcome.code, {finding["name"]: finding for finding in json.loads(outcome.out)}


@pytest.mark.java
def test_a_machine_that_can_run_millstream_passes(run: Run) -> None:
    code, found = findings(run, *FREE)
    assert [name for name, finding in found.items() if finding["state"] == "missing"] == []
    assert code == 0
    assert found["pyspark"]["found"] == "4.3.0"
    assert found["class archives"]["state"] == "good"
    assert "127.0.0.1" in found["Spark's real-time shuffle"]["found"]


def test_each_line_has_its_sign(run: Run) -> None:
    outcome = run("doctor", *FREE)
    assert "✓ Python" in outcome.out
    assert all(line[0] in "✓✗○ " for line in outcome.out.splitlines())


def test_a_taken_port_is_found_with_its_holder(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, found = findings(run, *FREE, "--set", f"serve.port={port}")
    assert code == 1
    assert f"process {os.getpid()}" in found["port of serve"]["found"]
    assert "--serve-port" in found["port of serve"]["remedy"]


def test_a_machine_without_java_is_told_what_to_install(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    code, found = findings(run, *FREE)
    assert code == 1
    assert "openjdk" in found["Java"]["remedy"]


@pytest.mark.java
def test_jars_that_are_not_there_yet_are_no_failure(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path))
    code, found = findings(run, *FREE)
    assert code == 0
    assert found["jars: connector"]["state"] == "optional"
    assert "millstream run" in found["jars: connector"]["remedy"]
    assert found["class archives"]["state"] == "optional"
    assert "millstream prepare" in found["class archives"]["remedy"]
    assert list(tmp_path.iterdir()) == [], "it only looks"


def test_a_damaged_jar_is_named(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from millstream.runtime.jars import locked

    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path))
    name = locked("connector")[0].file_name
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / name).write_bytes(b"not a jar")
    code, found = findings(run, *FREE)
    assert code == 1
    assert name in found["jars: connector"]["found"]
