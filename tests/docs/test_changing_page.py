"""docs/guides/changing_pipelines.md shows commands that exist and the messages that users get."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.pages import read

from millstream.cli import group
from millstream.cli.commands import plan as plan_command
from millstream.collect.schemas import check_schemas
from millstream.errors import PipelineError
from millstream.log.producing.write import write
from millstream.log.settings import LogSettings
from millstream.log.topic_names import stream_topic
from millstream.pipeline.app import App
from millstream.pipeline.pipeline_topics import ensure_topics

PAGE = read("docs/guides/changing_pipelines.md")
WORDS = " ".join(PAGE.split())
SCHEMA = "user STRING NOT NULL, page STRING, at TIMESTAMP"


def clicks(name: str, schema: str = SCHEMA, key: str = "user") -> App:
    app = App(name)
    app.stream("clicks", schema=schema, key=key, event_time="at")
    return app


@pytest.fixture
def deployed(app_name: str, log_settings: LogSettings) -> str:
    """The name of an app whose stream has events."""
    app = clicks(app_name)
    ensure_topics(app, log_settings)
    check_schemas(app, log_settings, accept=False)
    write(log_settings, stream_topic(app_name, "clicks"), {"ada": b"{}"}, 30)
    return app_name


def test_the_refusal_of_a_schema_is_the_one_on_the_page(
    deployed: str, log_settings: LogSettings
) -> None:
    app = clicks(deployed, SCHEMA.replace("page STRING", "page INT"))
    with pytest.raises(PipelineError) as refused:
        check_schemas(app, log_settings, accept=False)
    assert f"{refused.value.message}; {refused.value.remedy}" in WORDS
    check_schemas(app, log_settings, accept=True)


@pytest.mark.parametrize(
    ("schema", "key", "fits"),
    [
        (f"{SCHEMA}, referrer STRING", "user", True),
        (SCHEMA.replace("page STRING", "page STRING NOT NULL"), "user", False),
        (SCHEMA.replace("page STRING, ", ""), "user", False),
        (SCHEMA, "page", False),
        (f"{SCHEMA}, referrer STRING NOT NULL", "user", False),
    ],
)
def test_a_schema_that_changes_is_taken_as_the_table_says(
    deployed: str, log_settings: LogSettings, schema: str, key: str, fits: bool
) -> None:
    app = clicks(deployed, schema, key)
    if fits:
        check_schemas(app, log_settings, accept=False)
    else:
        with pytest.raises(PipelineError):
            check_schemas(app, log_settings, accept=False)


def test_going_back_from_a_new_column_is_refused_unless_it_is_accepted(
    deployed: str, log_settings: LogSettings
) -> None:
    check_schemas(clicks(deployed, f"{SCHEMA}, referrer STRING"), log_settings, accept=False)
    with pytest.raises(PipelineError, match="referrer"):
        check_schemas(clicks(deployed), log_settings, accept=False)
    check_schemas(clicks(deployed), log_settings, accept=True)


def test_states_of_plan_are_in_plans_words() -> None:
    states = re.findall(r"^  state +(.*)$", PAGE, re.MULTILINE)
    source = Path(plan_command.__file__).read_text(encoding="utf-8")
    assert len(states) == 2
    assert all(state.split(":")[0] in source for state in states)


def test_every_command_exists() -> None:
    used = set(re.findall(r"millstream ([a-z]+)\b(?! is|'s)", PAGE)) - {"analyze", "run"}
    assert used <= set(group.millstream.commands)
