"""Installs and runs PyFlink for the benchmark, in its own venv in the user's cache."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from bench.engines import Engine, engine

from millstream.errors import MachineError
from millstream.log.settings import LogSettings
from millstream.runtime import ivy
from millstream.runtime.jars import cache_folder

VERSION = "2.3.0"
CONNECTOR = "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2"
JOB = Path(__file__).with_name("flink_job.py")


@dataclass(frozen=True)
class Flink:
    """A PyFlink installation."""

    python: Path
    jar: Path

    def counting(self, log: LogSettings, source: str, sink: str) -> AbstractContextManager[Engine]:
        """Run the job until the block ends; it reads the source from its beginning."""
        command = [
            *[str(self.python), str(JOB), "--bootstrap", log.bootstrap, "--source", source],
            *["--sink", sink, "--jar", str(self.jar), "--checkpoints", "{folder}/checkpoints"],
        ]
        return engine(command, source, sink)


def prepare(report: Callable[[str], None]) -> Flink:
    """Install what is missing: some hundred megabytes, once. MachineError if that fails."""
    folder = cache_folder().parent / f"flink-{VERSION}"
    flink = Flink(folder / "venv/bin/python", folder / "connector.jar")
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        uv = shutil.which("uv")
        if uv is None:
            raise MachineError("no uv in the path", remedy="run `make bench-windows`, which has it")
        report(f"installing PyFlink {VERSION} (once; kept in a cache) …")
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        _run([uv, "venv", "--quiet", "--python", version, str(folder / "venv")])
        install = [uv, "pip", "install", "--quiet", "--python", str(flink.python)]
        _run([*install, f"apache-flink=={VERSION}"])
        found = ivy.retrieve(
            [CONNECTOR], folder, transitive=False, title="Flink connector", report=report
        )
        shutil.copy(found[CONNECTOR], flink.jar)
        (folder / "complete").touch()
    return flink


def _run(command: list[str]) -> None:
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    if outcome.returncode != 0:
        said = (outcome.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise MachineError(
            f"cannot install PyFlink: {said[:300]}",
            remedy="check the network, or leave it out: --no-flink",
        )
