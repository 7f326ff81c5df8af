"""`plan` in a process of its own: it starts and stops a Spark session."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PIPELINE = """
CREATE STREAM orders (id BIGINT NOT NULL, city STRING, at TIMESTAMP) WITH (key = 'id');
CREATE VIEW by_city WITH (key = 'city') AS SELECT city, count(*) AS n FROM orders GROUP BY city;
CREATE VIEW ghent AS SELECT id FROM orders WHERE city = 'Ghent';
"""


def plan(folder: Path, text: str, *flags: str) -> subprocess.CompletedProcess[str]:
    (folder / "shop.sql").write_text(text)
    command = [sys.executable, "-m", "millstream", "plan", "shop.sql", *flags]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_a_plan_says_how_each_view_runs_and_why(tmp_path: Path) -> None:
    answer = plan(tmp_path, PIPELINE, "--json")
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""  # Spark's own words are none of the user's business
    found = json.loads(answer.stdout)
    by_city, ghent = found["views"]
    assert found["streams"][0]["topic"] == "shop.stream.orders"
    assert by_city["reads"] == ["shop.stream.orders"]
    assert by_city["topic"] == "shop.view.by_city"
    assert by_city["key"] == ["city"]
    assert by_city["mode"] == "real_time"
    assert by_city["lineage"] == "revision"
    assert by_city["reason"]
    assert "counted once" in by_city["guarantee"]
    assert ghent["key"] is None
    assert ghent["lineage"] == "position"
    assert found["slots"] == by_city["slots"] + ghent["slots"]
    assert not (tmp_path / ".millstream").exists()


def test_a_plan_for_people_has_the_same_facts(tmp_path: Path) -> None:
    answer = plan(tmp_path, PIPELINE)
    assert answer.returncode == 0, answer.stderr
    for words in ("view by_city", "real-time: ", "shop.stream.orders", "a stream of result rows"):
        assert words in answer.stdout


def test_a_mistake_that_only_spark_sees_is_one_line(tmp_path: Path) -> None:
    answer = plan(tmp_path, PIPELINE.replace("SELECT city,", "SELECT ctiy,"))
    assert answer.returncode == 1
    assert answer.stderr.startswith("error: ")
    assert "shop.sql:3" in answer.stderr
    assert "ctiy" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
