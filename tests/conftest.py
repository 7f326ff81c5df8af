"""One real Kafka for the whole run; topics of their own for each test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from millstream.log.broker import Broker
from millstream.log.settings import LogSettings


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("kafka-home")) as running:
        yield running


@pytest.fixture(scope="session")
def log_settings(broker: Broker) -> LogSettings:
    return LogSettings(bootstrap=broker.bootstrap)


@pytest.fixture
def app_name() -> str:
    return f"app{uuid.uuid4().hex[:10]}"
