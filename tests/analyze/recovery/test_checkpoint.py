"""The folders of checkpoints: one for each edition of a view."""

from __future__ import annotations

import json
from pathlib import Path

from tests.analyze.conftest import Load

from millstream.analyze.rebuild.dropping import drop_noted, note_drop
from millstream.analyze.recovery.checkpoint import (
    checkpoint_generations,
    delete_checkpoints,
    removed_views,
)
from millstream.log.settings import LogSettings
from millstream.log.topic_names import edition_topic, view_topic
from millstream.log.topics import known_topics
from millstream.pipeline.pipeline_topics import ensure_topics, recreate_topic
from millstream.runtime.home import Home


def make_checkpoints(checkpoints: Path, *folders: str) -> None:
    for folder in folders:
        (checkpoints / folder).mkdir(parents=True)
        marker = {"generation": f"of {folder}", "reads": {}, "topic": "id"}
        (checkpoints / folder / "generation.json").write_text(json.dumps(marker))


def test_checkpoints_of_former_editions_are_deleted_and_the_served_one_stays(
    tmp_path: Path,
) -> None:
    make_checkpoints(tmp_path, "by_city", "by_city.2", "by_city_and_day", "removed")
    assert checkpoint_generations(tmp_path, "shop", "by_city") == {
        "shop.view.by_city": "of by_city",
        "shop.view.by_city.2": "of by_city.2",
    }
    assert removed_views(tmp_path, ["by_city", "by_city_and_day"]) == ["removed"]
    delete_checkpoints(tmp_path, "by_city", but=["shop.view.by_city.2"])
    assert {folder.name for folder in tmp_path.iterdir()} == {
        "by_city.2",
        "by_city_and_day",
        "removed",
    }


def test_a_removed_views_state_is_kept_until_somebody_agrees_to_drop_it(
    log_settings: LogSettings, pipeline: Load, tmp_path: Path
) -> None:
    app = pipeline(
        'app.stream("orders", schema="city STRING")\n'
        'app.view("old", sql="SELECT city FROM orders")\n'
        'app.view("older", sql="SELECT city FROM orders")'
    )
    ensure_topics(app, log_settings)
    recreate_topic(app, log_settings, "old", 1)
    home = Home(tmp_path / "home")
    make_checkpoints(home.checkpoints, "old.1", "older")
    assert drop_noted(home, log_settings, app.name, []) == ["old", "older"]
    note_drop(home, "old")
    assert drop_noted(home, log_settings, app.name, []) == ["older"]
    left = known_topics(log_settings)
    assert view_topic(app.name, "older") in left
    assert not {view_topic(app.name, "old"), edition_topic(app.name, "old", 1)} & left
