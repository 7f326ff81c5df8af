"""A server whose pipeline has named queries."""

from __future__ import annotations

import pytest
from tests.serve.pipeline import Pipeline
from tests.serve.queries.shop import declare_queries

from millstream.log.settings import LogSettings


@pytest.fixture
def pipeline(log_settings: LogSettings, app_name: str) -> Pipeline:
    return Pipeline(app_name, log_settings, declare_queries(app_name))
