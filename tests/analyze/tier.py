"""The whole tier, in a thread on the session that all tests share, or in a process."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Protocol

from pyspark.sql import SparkSession

from millstream.analyze.planning.editions import describe_views, topic_of
from millstream.analyze.service import Analyze
from millstream.analyze.settings import AnalyzeSettings
from millstream.log.settings import LogSettings
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.runtime.home import Home
from millstream.settings import Settings


class Tier(Protocol):
    """A running `analyze` that can be stopped at any moment."""

    settings: Settings

    def start(self, app: App) -> None: ...

    def stop(self) -> None:
        """Interrupt the queries wherever they are. The next start repeats what they did since
        their last commit."""


class Threaded:
    """Runs in a thread, on a session that exists."""

    def __init__(
        self, spark: SparkSession, log: LogSettings, home: Path, idle: str = "10 seconds"
    ) -> None:
        self._spark, self._home = spark, Home(home)
        self.settings = _settings(log, idle)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def start(self, app: App) -> None:
        self.app = app
        ensure_topics(app, self.settings.log)
        self._stopping.clear()
        tier = Analyze(app, self.settings, self._home, self._spark)
        self._thread = threading.Thread(target=self._run, args=(tier,))
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(60)
        self._spark.sparkContext.setLogLevel("WARN")
        if self._failure is not None:
            raise self._failure

    def _run(self, tier: Analyze) -> None:
        try:
            tier.run(self._stopping)
        except BaseException as failure:
            self._failure = failure

    def topic(self, view: str) -> str:
        """The topic that holds the view's rows; empty if there is none yet."""
        described = describe_views(self.app.name, self.settings.log).get(view)
        return topic_of(self.app.name, described) if described else ""


class Killed:
    """Runs in a process, which `stop` kills."""

    def __init__(self, log: LogSettings, home: Path, idle: str) -> None:
        self.settings = _settings(log, idle)
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, app: App) -> None:
        analyze, log = self.settings.analyze, self.settings.log
        assignments = (
            f"--set=log.bootstrap={log.bootstrap}",
            f"--set=analyze.checkpoint_interval={analyze.checkpoint_interval}",
            f"--set=analyze.idle={analyze.idle}",
        )
        command = [sys.executable, "-m", "millstream", "analyze", app.location.file, *assignments]
        self._process = subprocess.Popen([*command, f"--home={self._home}"])

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _settings(log: LogSettings, idle: str) -> Settings:
    return Settings(log=log, analyze=AnalyzeSettings(checkpoint_interval="5 seconds", idle=idle))
