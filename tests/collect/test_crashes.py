"""kill -9 at random moments: every acknowledged event is in the log once, in order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.collect.crash_runs import CrashRun, disturb_broker

from millstream.log.broker import Broker
from millstream.log.settings import LogSettings

SECONDS = 10.0


@pytest.mark.timeout(240)
async def test_a_killed_collector_loses_doubles_and_reorders_nothing(
    app_name: str, log_settings: LogSettings, tmp_path: Path
) -> None:
    crashes = CrashRun(app_name, log_settings, tmp_path, seed=random.randrange(10**6))
    wrong = await crashes.run(SECONDS, least=10)
    print(crashes)
    assert wrong == [], str(crashes)


@pytest.mark.timeout(240)
@pytest.mark.kafka
async def test_a_killed_collector_loses_nothing_while_kafka_is_killed_and_paused(
    app_name: str, tmp_path: Path
) -> None:
    with Broker(tmp_path / "kafka-home", memory="256m") as broker:
        log = LogSettings(bootstrap=broker.bootstrap)
        crashes = CrashRun(app_name, log, tmp_path / "home", seed=random.randrange(10**6))
        disturb = disturb_broker(broker, kill=0.02, pause=0.3)
        wrong = await crashes.run(SECONDS, 5, disturb)
        print(crashes)
        assert wrong == [], str(crashes)
