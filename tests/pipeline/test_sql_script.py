"""Pipelines that are SQL scripts."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from millstream.connectors import WebSocketSource
from millstream.errors import PipelineError
from millstream.pipeline.load import load
from millstream.schema import to_ddl
from millstream.syntax.source_location import SourceLocation

GOOD = """\
-- Who answers; a comment may hold CREATE VIEW and ; alike.
CREATE STREAM rsvps (
  id LONG NOT NULL COMMENT 'a ) and a ;', -- the key
  at TIMESTAMP,
  price DECIMAL(10, 2),
  `group` STRUCT<city: STRING>
) WITH (
  key = 'id', event_time = 'at', lateness = '10 minutes', ahead = '5 s', delivery = 'at_least_once',
  retention = '1 day', source = 'ws://127.0.0.1:8600/rsvps', description = 'Answers'
);

/* views; of it */
CREATE VIEW per_minute WITH (key = ('window', 'city'), keep = '3 hours', mode = 'real_time') AS
SELECT window, `group`.city AS city, count(*) AS n
FROM rsvps GROUP BY window(at, '1 minute'), 2;
create view big with (reads = (per_minute = 'changes')) as select city from per_minute where n > 3;
CREATE VIEW all_of_it AS SELECT ';' AS x, * FROM rsvps
"""


def write(tmp_path: Path, text: str, name: str = "meetup.sql") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_script_gives_the_same_model_as_python(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    app = load(path)
    assert app.name == "meetup"
    stream = app.streams["rsvps"]
    assert to_ddl(stream.schema) == (
        "id bigint NOT NULL COMMENT 'a ) and a ;', at timestamp, price decimal(10,2), "
        "`group` struct<city: string>"
    )
    assert (stream.key, stream.event_time) == ("id", "at")
    assert (stream.lateness, stream.retention) == (timedelta(minutes=10), timedelta(days=1))
    assert stream.ahead == timedelta(seconds=5)
    assert (stream.delivery, stream.description) == ("at_least_once", "Answers")
    assert stream.source == WebSocketSource("ws://127.0.0.1:8600/rsvps")
    assert stream.location == SourceLocation(str(path), 2)
    per_minute, big, all_of_it = app.views.values()
    assert (per_minute.key, per_minute.keep) == (("window", "city"), timedelta(hours=3))
    assert (per_minute.mode, per_minute.inputs) == ("real_time", ("rsvps",))
    assert dict(big.reads) == {"per_minute": "changes"}
    assert all_of_it.sql == "SELECT ';' AS x, * FROM rsvps"
    assert all_of_it.function is None


def test_create_app_names_the_app(tmp_path: Path) -> None:
    text = "CREATE APP other;\nCREATE STREAM s (x INT);"
    assert load(write(tmp_path, text, "not a name.sql")).name == "other"


HEAD = "CREATE STREAM s (x INT, at TIMESTAMP) WITH (key = 'x');\n"
MISTAKES = {
    "DROP TABLE s;": (
        2,
        "a script has CREATE STREAM, VIEW and QUERY statements, but here is 'DROP'",
        "CREATE STREAM name",
    ),
    "CREATE TABLE t (x INT);": (2, "here is 'CREATE TABLE'; write CREATE STREAM name (column"),
    "CREATE MATERIALIZED VIEW v AS SELECT x FROM s;": (
        *(2, "here is 'CREATE MATERIALIZED'; write CREATE VIEW name"),
    ),
    "CREATE VIEW v AS\nSELECT x\nFROM s\nCREATE VIEW w AS SELECT x FROM s;": (
        4,
        "the statement in line 2 has no semicolon at its end",
        "write ; at the end of line 4",
    ),
    "CREATE STREAM t (x INT)\nCREATE VIEW w AS SELECT x FROM s;": (
        *(2, "statement in line 2 has no semicolon", "at the end of line 2"),
    ),
    "CREATE APP late;": (2, "CREATE APP does not stand first"),
    "CREATE STREAM": (2, "the stream's name is expected, but the text ends"),
    "CREATE STREAM t;": (2, "'(' is expected, not ';'"),
    "CREATE STREAM t (x INT;": (2, "the parenthesis is not closed"),
    "CREATE STREAM t (\n  x INT,\n  y STRNG\n);": (4, "STRNG", "did you mean STRING?"),
    "CREATE STREAM t ();": (2, "the schema is empty"),
    "CREATE STREAM T (x INT);": (2, "stream name 'T'", "write 't'"),
    "CREATE STREAM s (x INT);": (2, "taken by the stream in line 1"),
    "CREATE STREAM t (x INT) KEY x;": (2, "';' is expected, not 'KEY'"),
    "CREATE STREAM t (x INT) WITH (\n key = 'x',\n lateness '1 s');": (4, "'=' is expected"),
    "CREATE STREAM t (x INT) WITH (\n\n kee = 'x');": (4, "unknown option 'kee'", "'key'"),
    "CREATE STREAM t (x INT) WITH (key = x);": (2, "a text in quotes is expected for key"),
    "CREATE STREAM t (x INT) WITH (key = 'x' source = 'y');": (2, "a comma or ')' is expected"),
    "CREATE STREAM t (x INT) WITH (key = 'x', key = 'x');": (2, "'key' is there twice"),
    "CREATE STREAM t (x INT) WITH (\n schema = 'x INT');": (3, "schema is not written in WITH"),
    "CREATE STREAM t (x INT) WITH (source =\n 'gopher://x');": (2, "names no kind of source"),
    "CREATE STREAM t (x INT) WITH (delivery = 'at_least_once',\n dedup = '2 hours');": (
        *(3, "dedup='2 hours' but is at_least_once", "delivery = 'exactly_once'"),
    ),
    "CREATE STREAM t (x INT) WITH (\n shed_at = '0.5');": (
        3,
        "shed_at='0.5' but no shed",
        "add shed=",
    ),
    "CREATE VIEW v AS;": (2, "a SELECT is expected, not ';'"),
    "CREATE VIEW v SELECT x FROM s;": (2, "'AS' is expected, not 'SELECT'"),
    "CREATE VIEW v AS\nSELECT x\nFRM s;": (4, "did you mean FROM?"),
    "CREATE VIEW v AS\nSELECT x FROM t;": (2, "'t', which is neither a stream nor a view"),
    "CREATE VIEW v WITH (\n key = ('x', 'y')) AS SELECT x FROM s": (3, "the key column 'y'"),
    "CREATE VIEW v WITH (key = ('x' 'y')) AS SELECT x FROM s": (2, "a comma or ')' is expected"),
    "CREATE VIEW v AS SELECT 'x FROM s;\n\n": (2, "a quote or comment that is not closed: \"'x"),
    "/* open\n\n": (2, "a quote or comment that is not closed"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_reported_with_its_line_and_a_remedy(tmp_path: Path, mistake: str) -> None:
    line, *parts = MISTAKES[mistake]
    path = write(tmp_path, HEAD + mistake)
    with pytest.raises(PipelineError) as caught:
        load(path)
    for part in parts:
        assert str(part) in str(caught.value)
    assert (caught.value.file, caught.value.line) == (str(path), line)
    assert caught.value.remedy


def test_a_file_name_that_is_no_valid_app_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="CREATE APP name; as the first statement"):
        load(write(tmp_path, HEAD, "My Pipeline.sql"))
