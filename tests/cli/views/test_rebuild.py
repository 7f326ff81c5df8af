"""`rebuild` waits for what it asked for, whatever becomes of `analyze` meanwhile."""

from __future__ import annotations

import msgspec
import pytest

from millstream.analyze.rebuild.requests import RebuildRequest, send_request
from millstream.cli.views.rebuild import RebuildWatch, follow
from millstream.errors import MillstreamError
from millstream.log.producing.write import write
from millstream.log.settings import LogSettings
from millstream.log.topic_names import audit_topic, rebuilds_topic
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics
from millstream.values.report import ProcessReport, RebuildStatus, ViewCounts

VIEW = "by_city"


@pytest.fixture
def watch(log_settings: LogSettings, app_name: str) -> RebuildWatch:
    """Of a view whose rebuild `ours` was asked for, and may go."""
    app = App(app_name)
    app.stream("orders", schema="city STRING")
    app.view(VIEW, key=["city"], sql="SELECT city, count(*) AS n FROM orders GROUP BY city")
    ensure_topics(app, log_settings)
    send_request(log_settings, app_name, VIEW, RebuildRequest("ours", go=True))
    return RebuildWatch(log_settings, app_name, VIEW)


def tell(log: LogSettings, app: str, rebuild: RebuildStatus) -> None:
    """Report as `analyze` does each second."""
    report = ProcessReport("analyze", "host-1", 1, 1, views={VIEW: ViewCounts(rebuild=rebuild)})
    write(log, audit_topic(app), {"": msgspec.json.encode(report)}, 10)


def test_a_rebuild_that_waits_for_a_change_of_the_pipeline_is_not_called_done(
    watch: RebuildWatch, log_settings: LogSettings, app_name: str
) -> None:
    tell(log_settings, app_name, RebuildStatus("replaying"))  # which nobody asked for
    tell(log_settings, app_name, RebuildStatus("failed", "ours", error="no room"))
    with pytest.raises(MillstreamError, match="no room"):
        watch.await_end("ours")


def test_a_rebuild_is_done_when_it_is_wished_no_more(
    watch: RebuildWatch, log_settings: LogSettings, app_name: str
) -> None:
    tell(log_settings, app_name, RebuildStatus("ready", "ours"))
    write(log_settings, rebuilds_topic(app_name), {VIEW: None}, 10)
    tell(log_settings, app_name, RebuildStatus("done", "ours"))
    watch.await_end("ours")


def test_whose_rebuild_was_taken_over_by_another_is_told_so(
    watch: RebuildWatch, log_settings: LogSettings, app_name: str
) -> None:
    send_request(log_settings, app_name, VIEW, RebuildRequest("theirs"))
    tell(log_settings, app_name, RebuildStatus("replaying", "theirs"))
    with pytest.raises(MillstreamError, match="another rebuild"):
        follow(watch, "ours")
    assert watch.is_open("theirs")
