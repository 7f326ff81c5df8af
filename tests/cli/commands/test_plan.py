"""`plan` in a process of its own: it starts and stops a Spark session."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from millstream import App
from millstream.cli.commands.plan import show_warning, state
from millstream.serve.settings import ServeSettings

pytestmark = pytest.mark.spark

PIPELINE = """
CREATE STREAM orders (id BIGINT NOT NULL, city STRING, at TIMESTAMP) WITH (key = 'id');
CREATE VIEW by_city WITH (key = 'city') AS SELECT city, count(*) AS n FROM orders GROUP BY city;
CREATE VIEW ghent AS SELECT id FROM orders WHERE city = 'Ghent';
CREATE QUERY top (n = 3) WITH (key = 'city') AS SELECT * FROM by_city ORDER BY n DESC LIMIT :n;
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
    (query,) = found["queries"]
    assert (query["name"], query["views"], query["key"]) == ("top", ["by_city"], ["city"])
    assert query["parameters"] == {"n": 3}
    assert not (tmp_path / ".millstream").exists()


def test_a_plan_for_people_has_the_same_facts(tmp_path: Path) -> None:
    answer = plan(tmp_path, PIPELINE)
    assert answer.returncode == 0, answer.stderr
    for words in ("view by_city", "real-time: ", "shop.stream.orders", "a stream of result rows"):
        assert words in answer.stdout
    for words in ("query top", "n integer = 3", "/v1/queries/top"):
        assert words in answer.stdout


def test_a_rebuild_that_was_stopped_is_not_taken_for_the_view_that_is_served() -> None:
    before = {"shop.view.by_city": "old", "shop.view.by_city.1": "new"}
    assert state("old", before).startswith("unchanged")
    assert state("new", before).startswith(
        "changed: the rebuild that was started continues; the old"
    )
    assert state("newer", before).startswith("changed: rebuilt from the log; the old rows")
    assert state("old", {}).startswith("new")


def test_a_mistake_that_only_spark_sees_is_one_line(tmp_path: Path) -> None:
    answer = plan(tmp_path, PIPELINE.replace("SELECT city,", "SELECT ctiy,"))
    assert answer.returncode == 1
    assert answer.stderr.startswith("error: ")
    assert "shop.sql:3" in answer.stderr
    assert "ctiy" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_all_mistakes_are_told_in_one_run_each_in_its_line(tmp_path: Path) -> None:
    mistakes = """CREATE VIEW s AS SELECT id FROM orders ORDER BY id;
CREATE VIEW d WITH (key = 'city') AS SELECT city, count(DISTINCT id) AS n FROM orders GROUP BY city;
"""
    answer = plan(tmp_path, PIPELINE + mistakes)
    assert answer.returncode == 1
    first, second = answer.stderr.splitlines()
    assert first.startswith(
        "error: shop.sql:6: view 's' cannot run as a continuous query: it sorts"
    )
    assert second.startswith("error: shop.sql:7: view 'd' cannot run as a continuous query")
    assert "SELECT DISTINCT" in second


def test_a_policy_that_needs_claims_without_a_login_is_mentioned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    app = App("shop")
    app.stream("orders", schema="id LONG, tenant STRING", rows="tenant = caller.tenant")
    show_warning(app, ServeSettings())
    assert capsys.readouterr().out.startswith("! the policies of stream orders need claims")
