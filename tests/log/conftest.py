from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream import App
from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic
from millstream.pipeline.pipeline_topics import ensure_topics


def pipeline(name: str) -> App:
    """One stream, a view that is a table, and one that is a stream of rows."""
    app = App(name)
    app.stream("events", schema="id LONG, city STRING", key="id", retention="2 days")
    app.view("by_city", key=["city"], sql="SELECT city, count(*) AS n FROM events GROUP BY city")
    app.view("of_oslo", sql="SELECT * FROM events WHERE city = 'Oslo'")
    return app


@pytest.fixture
def app(app_name: str) -> App:
    return pipeline(app_name)


@pytest.fixture
def topic(log_settings: LogSettings, app: App) -> str:
    """An empty topic of one partition."""
    ensure_topics(app, log_settings)
    return stream_topic(app.name, "events")


@pytest.fixture
def make_pipeline() -> Callable[[str], App]:
    return pipeline
