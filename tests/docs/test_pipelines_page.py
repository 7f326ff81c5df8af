"""The pipelines in the README and in the guides load, and every option is documented."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from tests.docs.pages import read, snippets

from millstream.collect.formats.body import BodyFormat, format_of
from millstream.pipeline.app import App
from millstream.pipeline.declarations import QUERY_OPTIONS, STREAM_OPTIONS, VIEW_OPTIONS
from millstream.pipeline.load import load
from millstream.schema import to_ddl
from millstream.values.hidden_columns import RESERVED

FUNCTIONS = read("docs/guides/python_functions.md")
PAGE = read("docs/guides/pipelines.md")
OPTIONS = read("docs/reference/pipeline_options.md")
README = read("README.md")
SNIPPETS = snippets(PAGE)


@pytest.mark.parametrize(("language", "text"), [*SNIPPETS, *snippets(FUNCTIONS), *snippets(README)])
def test_every_snippet_loads(tmp_path: Path, language: str, text: str) -> None:
    path = tmp_path / f"pipeline.{'py' if language == 'python' else 'sql'}"
    path.write_text(text, encoding="utf-8")
    app = load(path)
    assert app.streams
    assert app.views


def test_the_first_event_of_the_readme_is_taken_in(tmp_path: Path) -> None:
    found = re.search(r"/v1/streams/(\w+) -H 'content-type: (\S+)' \\\n +-d '(.*)'", README)
    assert found is not None
    path = tmp_path / "pipeline.py"
    path.write_text(next(text for kind, text in snippets(README) if kind == "python"))
    stream = load(path).streams[found[1]]
    assert format_of(found[2]) is BodyFormat.SNIFF
    assert stream.validator().check(found[3].encode()).key == "ada"


def test_the_pipeline_in_sql_is_the_one_in_python(tmp_path: Path) -> None:
    apps = []
    for suffix, language in ((".py", "python"), (".sql", "sql")):
        path = tmp_path / f"pipeline{suffix}"
        path.write_text(next(text for kind, text in SNIPPETS if kind == language), encoding="utf-8")
        apps.append(load(path))
    one, other = apps
    assert one.name == other.name
    for stream in one.streams.values():
        twin = other.streams[stream.name]
        assert to_ddl(stream.schema) == to_ddl(twin.schema)
        assert (stream.key, stream.event_time, stream.lateness, stream.source) == (
            *(twin.key, twin.event_time, twin.lateness, twin.source),
        )
    assert {name: (view.inputs, view.key, view.keep) for name, view in one.views.items()} == {
        name: (view.inputs, view.key, view.keep) for name, view in other.views.items()
    }


@pytest.mark.parametrize(
    ("heading", "options", "method"),
    [
        ("## Streams", STREAM_OPTIONS, App.stream),
        ("## Views", VIEW_OPTIONS, App.view),
        ("## Queries", QUERY_OPTIONS, App.query),
    ],
)
def test_every_option_is_in_the_reference_and_in_the_signature(
    heading: str, options: tuple[str, ...], method: object
) -> None:
    section = OPTIONS.partition(f"{heading}\n")[2].partition("\n##")[0]
    documented = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert documented == set(options)
    assert callable(method)
    assert set(options) <= set(inspect.signature(method).parameters)


def test_every_hidden_column_is_in_the_reference() -> None:
    section = OPTIONS.partition("## Hidden columns\n")[2]
    table = section.partition("\n\nA query")[0]
    assert set(re.findall(r"`(_[a-z_]+)`", table)) == RESERVED
