"""Drift in a real topic, however many events it has."""

from __future__ import annotations

import json
import random

from confluent_kafka import Producer
from tests.conftest import Eventually

from millstream.analyze.monitor.drift.detector import SAMPLE
from millstream.analyze.monitor.drift.sampler import DriftMonitor
from millstream.log.connection import client_config
from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics


def test_a_shift_in_the_log_is_detected(
    log_settings: LogSettings, app_name: str, eventually: Eventually
) -> None:
    app = App(app_name)
    app.stream("levels", schema="level DOUBLE")
    ensure_topics(app, log_settings)
    # Or what is sent again would come behind what was sent later.
    producer = Producer(client_config(log_settings, enable_idempotence=True))
    chance = random.Random(1)
    for mean in (*[10.0] * 3, 50.0):
        for _ in range(SAMPLE):
            value = json.dumps({"level": chance.gauss(mean, 1)}).encode()
            producer.produce(stream_topic(app_name, "levels"), value, partition=0)
    producer.flush(10)
    drifts = DriftMonitor(app_name, app.streams.values(), log_settings, per_second=20 * SAMPLE)
    try:
        eventually(drifts.shifted)
        [drift] = drifts.shifted()
        assert (drift.stream, drift.field) == ("levels", "level")
        assert drift.before.startswith("median 9.9") or drift.before.startswith("median 10")
    finally:
        drifts.close()
