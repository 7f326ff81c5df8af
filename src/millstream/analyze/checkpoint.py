"""Where a view's query left off, and whether that still fits its inputs and results."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from millstream.analyze.plan import ViewPlan
from millstream.app import App
from millstream.errors import LogError
from millstream.log.consumer import bounds
from millstream.log.settings import LogSettings
from millstream.log.topics import (
    edition_of,
    edition_topic,
    ensure_topics,
    recreate_topic,
    topic_ids,
)


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
    folder = folder_of(checkpoints, plan.topic, plan.name)
    here, marker = folder / plan.generation, folder / f"{plan.generation}.json"
    ids = topic_ids(log, {*plan.reads, plan.written, plan.topic})
    edition = edition_of(plan.topic)
    if edition and not {plan.written, plan.topic} <= ids.keys():
        recreate_topic(app, log, plan.name, edition)
        ids = topic_ids(log, [*plan.reads, plan.written])
    if missing := {*plan.reads, plan.written} - ids.keys():
        ensure_topics(app, log)
        ids = topic_ids(log, [*plan.reads, plan.written])
        if missing := missing - ids.keys():
            raise LogError(
                f"view {plan.name} needs topic {min(missing)}, which Kafka does not have"
            )
    reads = {topic: ids[topic] for topic in plan.reads}
    found = _read(marker)
    if found == _Marker(plan.generation, reads, ids[plan.written]) and here.is_dir():
        return here
    if folder.exists():
        shutil.rmtree(folder)
    results = ids[plan.written]
    held = [bounds(log, topic) for topic in {plan.written, plan.topic}]
    if any(end > 0 for partitions in held for _, end in partitions.values()):
        results = recreate_topic(app, log, plan.name, edition)
    here.mkdir(parents=True)
    fresh = marker.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(_Marker(plan.generation, reads, results))))
    fresh.replace(marker)
    return here


def folder_of(checkpoints: Path, topic: str, view: str) -> Path:
    """Where the checkpoint of a query lies that writes to that topic of the view."""
    edition = edition_of(topic)
    return checkpoints / (f"{view}.{edition}" if edition else view)


def checkpoint_of(checkpoints: Path, plan: ViewPlan) -> Path:
    """The folder that a view's query starts from, be it there or not."""
    return folder_of(checkpoints, plan.topic, plan.name) / plan.generation


def left_behind(checkpoints: Path, views: Iterable[str]) -> list[str]:
    """The views that have a checkpoint but are not among `views`."""
    known = set(views)
    folders = checkpoints.iterdir() if checkpoints.is_dir() else ()
    return sorted({folder.name.partition(".")[0] for folder in folders} - known)


def generations(checkpoints: Path, app: str, view: str) -> dict[str, str]:
    """By topic of the view, the generation whose checkpoint there is; the first one is served."""
    found: dict[int, str] = {}
    for marker in checkpoints.glob(f"{view}*/*.json") if checkpoints.is_dir() else ():
        name, _, edition = marker.parent.name.partition(".")
        if name == view and (held := _read(marker)) is not None:
            found[int(edition or 0)] = held.generation
    return {edition_topic(app, view, edition): found[edition] for edition in sorted(found)}


def forget(checkpoints: Path, view: str, but: Iterable[str] = ()) -> None:
    """Remove a view's checkpoints, except those of its topics `but`."""
    kept = {folder_of(checkpoints, topic, view) for topic in but}
    for folder in checkpoints.iterdir() if checkpoints.is_dir() else ():
        if folder.name.partition(".")[0] == view and folder not in kept:
            shutil.rmtree(folder)


def clear_unless_begun(checkpoint: Path) -> None:
    """Let a query begin anew that was killed before its first batch was noted down.

    It leaves halves of files behind, beside which Spark refuses to begin. Nothing in there counts
    before that batch's offsets do.
    """
    offsets = checkpoint / "offsets"
    if not offsets.is_dir() or not any(entry.name.isdigit() for entry in offsets.iterdir()):
        clear(checkpoint)


def clear(checkpoint: Path) -> None:
    """Let the query begin anew, with the oldest events that there are."""
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()


def _read(marker: Path) -> _Marker | None:
    try:
        return _Marker(**json.loads(marker.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None
