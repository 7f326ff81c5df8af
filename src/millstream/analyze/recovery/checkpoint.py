"""The checkpoints of views' queries, and whether they still fit the topics."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from millstream.analyze.plan import ViewPlan
from millstream.analyze.recovery.progress import batch_numbers
from millstream.errors import LogError, TopicChanged
from millstream.log.consumer import bounds
from millstream.log.settings import LogSettings
from millstream.log.topic_names import edition_of, edition_topic, stream_topic
from millstream.log.topics import topic_ids
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics, recreate_topic


@dataclass(frozen=True, slots=True)
class _Marker:
    """The Kafka ids of the topics that a checkpoint refers to. A new topic has another id."""

    generation: str
    reads: dict[str, str]
    topic: str  # that the query writes to
    shown: str = ""  # the view's topic; empty: the same, or not known


@dataclass(frozen=True, slots=True)
class PreparedCheckpoint:
    """A checkpoint to start a query from."""

    folder: Path
    ids: dict[str, str]  # topic → id, of all topics that the query uses
    was_missing: bool = False  # the view had rows, but no checkpoint: it starts from scratch


def prepare(app: App, log: LogSettings, plan: ViewPlan, checkpoints: Path) -> PreparedCheckpoint:
    """The checkpoint to start the view's query from, with a result topic that fits it.

    A query without a checkpoint of its generation reads its inputs from the beginning and writes
    to an empty topic. TopicChanged if somebody deleted a topic that the checkpoint refers to: the
    view's rows could not be computed again from the log. Safe to interrupt anywhere, because the
    marker is written last.
    """
    folder = edition_folder(checkpoints, plan.topic, plan.name)
    here, marker = folder / plan.generation, folder / f"{plan.generation}.json"
    found = _read(marker)
    if found is not None and found.generation == plan.generation and here.is_dir():
        known = {**found.reads, plan.query_topic: found.topic}
        ids = _restore_streams(app, log, plan)
        changed = [topic for topic in known if ids.get(topic) != known[topic]]
        if not changed:
            return PreparedCheckpoint(here, known)
        ours = _own_topics(checkpoints)
        if others := [topic for topic in changed if ids.get(topic, "") not in ours]:
            raise topic_changed(plan, others[0], exists=others[0] in ids)
    had_checkpoint = any(folder.glob("*.json"))
    ids = _create_missing(app, log, plan)
    if folder.exists():
        shutil.rmtree(folder)
    results, edition = ids[plan.query_topic], edition_of(plan.topic)
    held = [bounds(log, topic) for topic in {plan.query_topic, plan.topic}]
    had_rows = any(end > 0 for partitions in held for _, end in partitions.values())
    if had_rows:
        results = recreate_topic(app, log, plan.name, edition)
    shown = topic_ids(log, [plan.topic]).get(plan.topic, "")
    reads = {topic: ids[topic] for topic in plan.reads}
    here.mkdir(parents=True)
    fresh = marker.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(_Marker(plan.generation, reads, results, shown))))
    fresh.replace(marker)
    known = {**reads, plan.query_topic: results}
    return PreparedCheckpoint(here, known, was_missing=had_rows and not had_checkpoint)


def topic_changed(plan: ViewPlan, topic: str, *, exists: bool) -> TopicChanged:
    """The error of a view whose topic was deleted, or replaced by one of the same name."""
    role = "its rows are in" if topic in (plan.query_topic, plan.topic) else "it reads"
    what = "was deleted and made again" if exists else "was deleted"
    return TopicChanged(
        f"view {plan.name} stopped: topic {topic}, which {role}, {what}; the view shows the rows "
        "from before",
        remedy=f"`millstream rebuild {plan.name}` computes it from what the log holds now",
    )


def _restore_streams(app: App, log: LogSettings, plan: ViewPlan) -> dict[str, str]:
    """The ids of the query's topics, after missing topics of streams were created.

    Collectors write to these. Missing topics of views are not created: while they are missing,
    servers keep the rows that they have.
    """
    names = {*plan.reads, plan.query_topic}
    ids = topic_ids(log, names)
    streams = {stream_topic(app.name, each) for each in app.streams}
    if missing := (names & streams) - ids.keys():
        ensure_topics(app, log, missing)
        ids = topic_ids(log, names)
    return ids


def _create_missing(app: App, log: LogSettings, plan: ViewPlan) -> dict[str, str]:
    """The ids of the query's topics, after all missing ones were created."""
    names = {*plan.reads, plan.query_topic}
    ids = topic_ids(log, {*names, plan.topic})
    edition = edition_of(plan.topic)
    if edition and not {plan.query_topic, plan.topic} <= ids.keys():
        recreate_topic(app, log, plan.name, edition)
        ids = topic_ids(log, names)
    if names - ids.keys():
        ensure_topics(app, log)
        ids = topic_ids(log, names)
        if missing := names - ids.keys():
            raise LogError(
                f"view {plan.name} needs topic {min(missing)}, which Kafka does not have"
            )
    return ids


def _own_topics(checkpoints: Path) -> set[str]:
    """The ids of topics that our own queries created, as when a view starts from scratch."""
    found = (_read(marker) for marker in checkpoints.glob("*/*.json"))
    return {id_ for held in found if held is not None for id_ in (held.topic, held.shown) if id_}


def edition_folder(checkpoints: Path, topic: str, view: str) -> Path:
    """The folder of an edition's checkpoints, by the edition's topic."""
    edition = edition_of(topic)
    return checkpoints / (f"{view}.{edition}" if edition else view)


def checkpoint_folder(checkpoints: Path, plan: ViewPlan) -> Path:
    """The folder of a query's checkpoint, whether it exists or not."""
    return edition_folder(checkpoints, plan.topic, plan.name) / plan.generation


def removed_views(checkpoints: Path, views: Iterable[str]) -> list[str]:
    """The names with a checkpoint that are not among `views`."""
    known = set(views)
    folders = checkpoints.iterdir() if checkpoints.is_dir() else ()
    return sorted({folder.name.partition(".")[0] for folder in folders} - known)


def checkpoint_generations(checkpoints: Path, app: str, view: str) -> dict[str, str]:
    """The generation of each edition of the view, by its topic; the first one is served."""
    found: dict[int, str] = {}
    for marker in checkpoints.glob(f"{view}*/*.json") if checkpoints.is_dir() else ():
        name, _, edition = marker.parent.name.partition(".")
        if name == view and (held := _read(marker)) is not None:
            found[int(edition or 0)] = held.generation
    return {edition_topic(app, view, edition): found[edition] for edition in sorted(found)}


def delete_checkpoints(checkpoints: Path, view: str, but: Iterable[str] = ()) -> None:
    """Remove a view's checkpoints, except those of its topics `but`."""
    kept = {edition_folder(checkpoints, topic, view) for topic in but}
    for folder in checkpoints.iterdir() if checkpoints.is_dir() else ():
        if folder.name.partition(".")[0] == view and folder not in kept:
            shutil.rmtree(folder)


def clear_unless_begun(checkpoint: Path) -> None:
    """Empty the checkpoint of a query that was killed before its first batch.

    It may hold incomplete files, with which Spark would not start.
    """
    if not batch_numbers(checkpoint / "offsets"):
        clear(checkpoint)


def clear(checkpoint: Path) -> None:
    """Empty the checkpoint: the query starts from the oldest events in the log."""
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()


def _read(marker: Path) -> _Marker | None:
    try:
        return _Marker(**json.loads(marker.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None
