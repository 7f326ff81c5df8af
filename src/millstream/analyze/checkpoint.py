"""Where a view's query left off, and whether that still fits its inputs and results."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from millstream.analyze.plan import ViewPlan
from millstream.app import App
from millstream.errors import LogError
from millstream.log.connection import client_config
from millstream.log.settings import LogSettings
from millstream.log.topics import ensure_topics, recreate_topic, topic_ids

_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Marker:
    """The topics that a checkpoint speaks of, by id: one of the same name may be another."""

    generation: str
    reads: dict[str, str]
    topic: str


def prepare(app: App, log: LogSettings, plan: ViewPlan, checkpoints: Path) -> Path:
    """The folder to start the view's query from, with a results topic that fits it.

    What does not fit is made anew: the query then replays its inputs from their beginning into an
    empty topic. Safe to be interrupted anywhere, because the marker is written last.
    """
    folder = checkpoints / plan.name
    here, marker = folder / plan.generation, folder / f"{plan.generation}.json"
    ids = topic_ids(log, [*plan.reads, plan.topic])
    if missing := {*plan.reads, plan.topic} - ids.keys():
        ensure_topics(app, log)
        ids = topic_ids(log, [*plan.reads, plan.topic])
        if missing := missing - ids.keys():
            raise LogError(
                f"view {plan.name} needs topic {min(missing)}, which Kafka does not have"
            )
    reads = {topic: ids[topic] for topic in plan.reads}
    found = _read(marker)
    if found == _Marker(plan.generation, reads, ids[plan.topic]) and here.is_dir():
        return here
    if folder.exists():
        shutil.rmtree(folder)
    results = ids[plan.topic]
    if _holds_anything(log, plan.topic):
        results = recreate_topic(app, log, plan.name)
    here.mkdir(parents=True)
    fresh = marker.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(_Marker(plan.generation, reads, results))))
    fresh.replace(marker)
    return here


def forget_others(checkpoints: Path, views: set[str]) -> None:
    """Remove the checkpoints of views that the pipeline no longer has."""
    for folder in checkpoints.iterdir() if checkpoints.is_dir() else ():
        if folder.name not in views:
            shutil.rmtree(folder)


def _read(marker: Path) -> _Marker | None:
    try:
        return _Marker(**json.loads(marker.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _holds_anything(log: LogSettings, topic: str) -> bool:
    consumer = Consumer(client_config(log, group_id="millstream-unused", enable_auto_commit=False))
    try:
        partitions = consumer.list_topics(topic, timeout=_SECONDS).topics[topic].partitions
        ends = (
            consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_SECONDS)[1]
            for number in partitions
        )
        return any(end > 0 for end in ends)
    finally:
        consumer.close()
