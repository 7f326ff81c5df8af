"""`drop` removes what no running system has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from millstream.log.producing.write import write
from millstream.log.settings import LogSettings
from millstream.log.topic_names import views_topic
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.runtime.home import Home

if TYPE_CHECKING:
    from tests.cli.conftest import Run

DESCRIBED = (
    b'{"name":"gone","inputs":[],"key":null,"columns":[],"mode":"real_time","reason":"",'
    b'"guarantee":"","lineage":"none","generation":"1"}'
)


def test_a_view_that_runs_is_not_dropped_though_its_file_has_changed(
    run: Run, pipeline: Path, log_settings: LogSettings, app_name: str, tmp_path: Path
) -> None:
    app = App(app_name)
    app.stream("orders", schema="city STRING")
    ensure_topics(app, log_settings)
    write(log_settings, views_topic(app_name), {"gone": DESCRIBED}, 10)
    home = Home(tmp_path / ".millstream")
    home.announce("analyze", pipeline=str(pipeline), views=["by_city", "gone"])
    where = ("--app", app_name, "--set", f"log.bootstrap={log_settings.bootstrap}")
    outcome = run("drop", "gone", "--yes", *where)
    assert outcome.code == 1
    assert f"view gone is in the running pipeline; remove it from {pipeline}" in outcome.err

    home.withdraw()
    home.announce("analyze", pipeline=str(pipeline), views=["by_city"])
    assert run("drop", "gone", "--yes", *where).code == 0
