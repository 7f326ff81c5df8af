"""Where a view's query left off, and whether that still fits its inputs and results."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from millstream.analyze.plan import ViewPlan
from millstream.errors import LogError, TopicChanged
from millstream.log.consumer import bounds
from millstream.log.settings import LogSettings
from millstream.log.topic_names import edition_of, edition_topic, stream_topic
from millstream.log.topics import topic_ids
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics, recreate_topic


@dataclass(frozen=True, slots=True)
class _Marker:
    """The topics that a checkpoint speaks of, by id: one of the same name may be another."""

    generation: str
    reads: dict[str, str]
    topic: str  # the one that the query writes to
    shown: str = ""  # the one with the rows as they are shown; empty: the same, or not known


@dataclass(frozen=True, slots=True)
class Prepared:
    """A folder to start a query from."""

    folder: Path
    ids: dict[str, str]  # topic → id, of all topics that the query must not lose
    lacks_checkpoint: bool = False  # the view had rows, but no checkpoint: it starts from scratch


def prepare(app: App, log: LogSettings, plan: ViewPlan, checkpoints: Path) -> Prepared:
    """The folder to start the view's query from, with a results topic that fits it.

    TopicChanged if somebody deleted a topic that the checkpoint refers to: what the view holds
    could not be computed again from what is there now. A query without a checkpoint, or with that
    of another generation, replays its inputs from their beginning into an empty topic. Safe to be
    interrupted anywhere, because the marker is written last.
    """
    folder = folder_of(checkpoints, plan.topic, plan.name)
    here, marker = folder / plan.generation, folder / f"{plan.generation}.json"
    found = _read(marker)
    if found is not None and found.generation == plan.generation and here.is_dir():
        known = {**found.reads, plan.written: found.topic}
        ids = _restore(app, log, plan)
        changed = [topic for topic in known if ids.get(topic) != known[topic]]
        if not changed:
            return Prepared(here, known)
        ours = _made(checkpoints)
        if strange := [topic for topic in changed if ids.get(topic, "") not in ours]:
            raise topic_changed(plan, strange[0], exists=strange[0] in ids)
    had_checkpoint = any(folder.glob("*.json"))
    ids = _complete(app, log, plan)
    if folder.exists():
        shutil.rmtree(folder)
    results, edition = ids[plan.written], edition_of(plan.topic)
    held = [bounds(log, topic) for topic in {plan.written, plan.topic}]
    had_rows = any(end > 0 for partitions in held for _, end in partitions.values())
    if had_rows:
        results = recreate_topic(app, log, plan.name, edition)
    shown = topic_ids(log, [plan.topic]).get(plan.topic, "")
    reads = {topic: ids[topic] for topic in plan.reads}
    here.mkdir(parents=True)
    fresh = marker.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(_Marker(plan.generation, reads, results, shown))))
    fresh.replace(marker)
    known = {**reads, plan.written: results}
    return Prepared(here, known, lacks_checkpoint=had_rows and not had_checkpoint)


def topic_changed(plan: ViewPlan, topic: str, *, exists: bool) -> TopicChanged:
    """The error of a view whose topic is gone, or is another one of the same name."""
    role = "its rows are in" if topic in (plan.written, plan.topic) else "it reads"
    what = "was deleted and made again" if exists else "was deleted"
    return TopicChanged(
        f"view {plan.name} stopped: topic {topic}, which {role}, {what}; the view shows the rows "
        "from before",
        remedy=f"`millstream rebuild {plan.name}` computes it from what the log holds now",
    )


def _restore(app: App, log: LogSettings, plan: ViewPlan) -> dict[str, str]:
    """The ids of the query's topics; those of streams that are gone are made again, empty.

    Collectors write to them, and would set every event aside. A topic with a view's rows is not:
    as long as it is gone, servers go on with the rows that they have.
    """
    names = {*plan.reads, plan.written}
    ids = topic_ids(log, names)
    streams = {stream_topic(app.name, each) for each in app.streams}
    if missing := (names & streams) - ids.keys():
        ensure_topics(app, log, missing)
        ids = topic_ids(log, names)
    return ids


def _complete(app: App, log: LogSettings, plan: ViewPlan) -> dict[str, str]:
    """The ids of the query's topics, all of which exist then."""
    names = {*plan.reads, plan.written}
    ids = topic_ids(log, {*names, plan.topic})
    edition = edition_of(plan.topic)
    if edition and not {plan.written, plan.topic} <= ids.keys():
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


def _made(checkpoints: Path) -> set[str]:
    """The ids of topics that our own queries made: a view that starts from scratch does so."""
    found = (_read(marker) for marker in checkpoints.glob("*/*.json"))
    return {id_ for held in found if held is not None for id_ in (held.topic, held.shown) if id_}


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
