"""The end of a view that the pipeline no longer has: its checkpoints, its topics, its description.

Nothing of it goes unasked. Where Kafka is not up yet when the user says so, that is noted down in
the home, and done by the next `analyze`.
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
    """Drop what was noted, unless it is among `views` again; what is left behind all the same."""
    folder, known = home.path / "dropped", set(views)
    for note in sorted(folder.iterdir()) if folder.is_dir() else ():
        if note.name not in known:
            drop_view(home, log, app, note.name)
        note.unlink()
    return removed_views(home.checkpoints, known)


def drop_view(home: Home, log: LogSettings, app: str, view: str) -> None:
    """Remove all that was computed of a view. The streams that it read and its ledger stay: what
    others have added up is not to be taken back. Blocks."""
    delete_checkpoints(home.checkpoints, view)
    known = known_topics(log)
    delete_topics(log, editions(app, view, known) | {output_state_topic(app, view)})
    if views_topic(app) in known:
        write(log, views_topic(app), {view: None}, _SECONDS)
