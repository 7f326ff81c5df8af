"""Where a view's query left off, and whether that still fits its inputs and results."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from millstream.analyze.plan import ViewPlan
from millstream.app import App
from millstream.errors import LogError
from millstream.log.consumer import bounds
from millstream.log.settings import LogSettings
from millstream.log.topics import ensure_topics, recreate_topic, topic_ids


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
        _clear_unless_begun(here)
        return here
    if folder.exists():
        shutil.rmtree(folder)
    results = ids[plan.topic]
    if any(end > 0 for _, end in bounds(log, plan.topic).values()):
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


def _clear_unless_begun(checkpoint: Path) -> None:
    # Killed before its first batch was noted down, a query leaves halves of files behind, beside
    # which Spark refuses to begin. Nothing in there counts before that batch's offsets do.
    offsets = checkpoint / "offsets"
    if not offsets.is_dir() or not any(entry.name.isdigit() for entry in offsets.iterdir()):
        shutil.rmtree(checkpoint)
        checkpoint.mkdir()


def _read(marker: Path) -> _Marker | None:
    try:
        return _Marker(**json.loads(marker.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None
