"""Removes a view that the pipeline no longer has: its checkpoints, topics and description.

Only a user's command removes a view. If Kafka is not running at that moment, a file in the home
notes it, and the next `analyze` removes the view.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.analyze.recovery.checkpoint import delete_checkpoints, removed_views
from millstream.log.producing.write import write
from millstream.log.settings import LogSettings
from millstream.log.topic_names import editions, output_state_topic, views_topic
from millstream.log.topics import delete_topics, known_topics
from millstream.runtime.home import Home

_SECONDS = 10.0


def note_drop(home: Home, view: str) -> None:
    """Let the next `analyze` drop the view."""
    folder = home.path / "dropped"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / view).touch()


def drop_noted(home: Home, log: LogSettings, app: str, views: Iterable[str]) -> list[str]:
    """Drop the noted views that are not in `views`; the removed views that still have state."""
    folder, known = home.path / "dropped", set(views)
    for note in sorted(folder.iterdir()) if folder.is_dir() else ():
        if note.name not in known:
            drop_view(home, log, app, note.name)
        note.unlink()
    return removed_views(home.checkpoints, known)


def drop_view(home: Home, log: LogSettings, app: str, view: str) -> None:
    """Remove a view's checkpoints, topics and description. Blocks.

    The streams that it read stay. So does its ledger: others may have added up its entries.
    """
    delete_checkpoints(home.checkpoints, view)
    known = known_topics(log)
    delete_topics(log, editions(app, view, known) | {output_state_topic(app, view)})
    if views_topic(app) in known:
        write(log, views_topic(app), {view: None}, _SECONDS)
