"""Loading pipeline files, with an error for every mistake."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path

import pytest

from millstream.connectors import WebSocketSource
from millstream.errors import PipelineError
from millstream.pipeline.load import load
from millstream.values.hidden_columns import RESERVED

GOOD = '''
from millstream import App, WebSocketSource

app = App("meetup")

app.stream(
    "rsvps",
    schema="id LONG, at TIMESTAMP, city STRING",
    key="id",
    event_time="at",
    lateness="10 minutes",
    source=WebSocketSource("ws://127.0.0.1:8600/rsvps"),
)

@app.view
def everything(rsvps):
    """All of it."""
    return rsvps

@app.view(key="city", keep="3 hours", mode="micro_batch", name="by_city")
def count(rsvps):
    return rsvps.groupBy("city").count()

app.view("big", sql="SELECT * FROM by_city", reads={"by_city": "changes"})
'''


def write(tmp_path: Path, text: str, name: str = "pipeline.py") -> Path:
    path = tmp_path / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def test_a_pipeline_is_loaded_with_all_its_options(tmp_path: Path) -> None:
    app = load(write(tmp_path, GOOD))
    stream = app.streams["rsvps"]
    assert (stream.key, stream.event_time, stream.lateness) == ("id", "at", timedelta(minutes=10))
    assert stream.source == WebSocketSource("ws://127.0.0.1:8600/rsvps")
    assert stream.location.line == 6
    everything, by_city, big = app.views.values()
    assert (everything.name, everything.description) == ("everything", "All of it.")
    assert (everything.inputs, everything.key) == (("rsvps",), None)
    assert (by_city.key, by_city.keep, by_city.mode) == (
        ("city",),
        timedelta(hours=3),
        "micro_batch",
    )
    assert (big.inputs, dict(big.reads)) == (("by_city",), {"by_city": "changes"})
    assert [view.location.line for view in app.views.values()] == [15, 20, 24]


def test_an_option_that_is_left_out_has_the_documented_default(tmp_path: Path) -> None:
    app = load(
        write(
            tmp_path,
            """
            from millstream import App
            app = App("small")
            app.stream("s", schema="x INT")
            """,
        )
    )
    stream = app.streams["s"]
    assert (stream.key, stream.event_time, stream.source) == (None, None, None)
    assert (stream.lateness, stream.retention) == (timedelta(), timedelta(days=7))
    assert stream.ahead == timedelta(minutes=1)
    assert stream.delivery == "exactly_once"


def test_a_view_may_read_one_that_is_declared_below_it(tmp_path: Path) -> None:
    app = load(
        write(
            tmp_path,
            """
            from millstream import App
            app = App("order")
            app.view("c", sql="SELECT x FROM b JOIN a USING (x)")
            app.view("b", sql="SELECT x FROM a")
            app.view("a", sql="SELECT x FROM s")
            app.stream("s", schema="x INT")
            """,
        )
    )
    assert [view.name for view in app.views_in_order()] == ["a", "b", "c"]


def test_a_pipeline_may_import_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_the_pipeline.py").write_text("COLUMNS = 'x INT'")
    app = load(
        write(
            tmp_path,
            """
            from dataclasses import dataclass
            from beside_the_pipeline import COLUMNS
            from millstream import App

            @dataclass
            class Event:
                x: "int"

            app = App("two")
            app.stream("one", schema=COLUMNS)
            app.stream("other", schema=Event)
            if __name__ == "__main__":
                raise AssertionError("a pipeline is not run as a script")
            """,
        )
    )
    assert list(app.streams) == ["one", "other"]


HEAD = """\
from millstream import App, WebSocketSource
app = App("shop")
app.stream("orders", schema="id LONG, at TIMESTAMP, city STRING, item STRUCT<name: STRING>")
"""

MISTAKES = {
    # streams
    'app.stream("Orders!", schema="x INT")': (
        4,
        "stream name 'Orders!' is not made of",
        "'orders'",
    ),
    'app.stream(5, schema="x INT")': (4, "stream name 5 is a int, not a text"),
    'app.stream("orders", schema="x INT")': (4, "taken by the stream in line 3"),
    'app.stream("s")': (4, "stream 's' has no schema", "give schema="),
    'app.stream("s", shema="x INT")': (4, "unknown option 'shema'", "did you mean 'schema'?"),
    'app.stream(\n  "s",\n  schema="x INT",\n  ky="x",\n)': (7, "unknown option 'ky'", "'key'"),
    'app.stream(\n  "s",\n  schema="""\n    x INT,\n    y STRNG""")': (8, "STRNG", "STRING"),
    'app.stream("s", schema=int)': (4, "the class int cannot be a schema"),
    **{
        f'app.stream("s", schema="""x INT,\n  {name} INT""")': (
            5,
            f"stream 's': column '{name}' has a name that Millstream uses itself",
            "rename the field, or leave it out of the schema",
        )
        for name in (*sorted(RESERVED), "_State")
    },
    'app.stream("s", schema=__import__("msgspec").defstruct("C", [("_state", int)]))': (
        *(4, "column '_state' has a name that Millstream uses itself", "rename the field"),
    ),
    'app.stream("s", schema="city INT", key="ctiy")': (4, "key='ctiy'", "did you mean 'city'?"),
    'app.stream("s", schema="x INT", key=["x"])': (4, "key=['x']", "one column's name"),
    'app.stream("s", schema="x STRUCT<y: INT>", key="x.y")': (4, "a nested field", "top-level"),
    'app.stream("s", schema="x ARRAY<INT>", key="x")': (4, "the key is a column of text"),
    'app.stream("s", schema="x INT", event_time="y")': (4, "event_time='y'", "'x'"),
    'app.stream("s", schema="x INT", event_time="x")': (4, "not a TIMESTAMP", "x TIMESTAMP"),
    'app.stream("s", schema="x TIMESTAMP", event_time="x", lateness="soon")': (
        *(4, "lateness: 'soon' is not a duration", "'10 minutes'"),
    ),
    'app.stream("s", schema="x INT", lateness="1 hour")': (4, "no event_time to be late by"),
    'app.stream("s", schema="x INT", ahead="1 hour")': (4, "no event_time to be ahead by"),
    'app.stream("s", schema="x INT", retention="0 days")': (4, "retention of zero"),
    'app.stream("s", schema="x INT", retention=7)': (4, "'7' is not a duration"),
    'app.stream("s", schema="x INT", delivery="exactly-once")': (4, "did you mean 'exactly_once'?"),
    'app.stream("s", schema="x INT", source=7)': (4, "write source=WebSocketSource("),
    'app.stream("s", schema="x INT", source=WebSocketSource("http://x"))': (
        4,
        "'http://x'",
        "ws://",
    ),
    # views
    'app.view("v", sql="SELECT city FROM ordrs")': (4, "'ordrs'", "did you mean 'orders'?"),
    "@app.view\ndef v(ordrs):\n  return ordrs": (4, "has a parameter 'ordrs'", "'orders'"),
    'app.view("orders", sql="SELECT city FROM orders")': (4, "'orders' is taken by the stream"),
    'app.view("v", sql="SELECT city FROM orders")\napp.view("v", sql="SELECT id FROM orders")': (
        *(5, "'v' is taken by the view in line 4"),
    ),
    'app.view("v", sql="""\n  SELECT city\n  FRM orders""")': (6, "did you mean FROM?"),
    'SQL = """\nSELECT city\nFRM orders"""\napp.view("v", sql=SQL)': (6, "did you mean FROM?"),
    'app.view("v", sql="SELECT city\\nFRM orders")': (4, "did you mean FROM?"),
    'app.view("v", sql="DROP TABLE orders")': (4, "not a SELECT but DROP"),
    'app.view("v", sql=5)': (4, "sql=5"),
    'app.view("v", key=["town"], sql="SELECT city FROM orders")': (4, "'town', which is not in"),
    'app.view("v", key="cty", sql="SELECT city FROM orders")': (4, "did you mean 'city'?"),
    'app.view("v", key=[], sql="SELECT city FROM orders")': (4, "key=[]"),
    'app.view("v", key=["a", "a"], sql="SELECT a FROM orders")': (4, "each once"),
    'app.view("v", keep="1 hour", sql="SELECT city FROM orders")': (
        4,
        "only rows of a table expire",
    ),
    'app.view("v", key="city", keep="0 s", sql="SELECT city FROM orders")': (4, "for no time"),
    'app.view("v", key="city", keep="long", sql="SELECT city FROM orders")': (4, "keep: 'long'"),
    'app.view("v", mode="fast", sql="SELECT city FROM orders")': (4, "mode='fast'", "real_time"),
    'app.view("v", kep="1 hour", sql="SELECT city FROM orders")': (4, "did you mean 'keep'?"),
    'app.view("v", sql="SELECT city, count(*) AS n FROM orders GROUP BY city")': (
        *(4, "aggregates but has no key", "add key=['city']"),
    ),
    'app.view("v", key="city")': (4, "this view has no query", "add sql="),
    "@app.view\ndef v():\n  pass": (4, "has no parameters", "def v(rsvps)"),
    "@app.view()\ndef v(*orders):\n  pass": (4, "the parameter *orders"),
    "@app.view()\ndef v(orders, **more):\n  pass": (4, "the parameter **more"),
    "@app.view()\nclass V:\n  pass": (4, "not a function"),
    "@app.view\ndef V(orders):\n  pass": (4, "view name 'V'", "write 'v'"),
    # views of views
    'app.view("a", sql="SELECT x FROM b")\napp.view("b", sql="SELECT x FROM a")': (
        *(4, "view 'a' feeds itself: a → b → a"),
    ),
    'app.view("a", sql="SELECT x FROM a")': (4, "feeds itself: a → a"),
    'app.view("t", key="city", sql="SELECT city FROM orders")\n'
    'app.view("v", key="n", sql="SELECT count(*) AS n FROM t")': (
        *(5, "reads the table 't' as if its rows were events", "reads={'t': 'changes'}"),
    ),
    'app.view("t", key="city", sql="SELECT city FROM orders")\n@app.view\ndef v(t):\n  return t': (
        5,
        "reads the table 't' as if",
    ),
    'app.view("v", sql="SELECT city FROM orders", reads={"orders": "changes"})': (
        *(4, "rows of a stream are events", "leave 'orders' out"),
    ),
    'app.view("v", sql="SELECT city FROM orders", reads={"order": "changes"})': (
        *(4, "does not read it", "did you mean 'orders'?"),
    ),
    'app.view("v", sql="SELECT city FROM orders", reads={"orders": "rows"})': (4, "as 'rows'"),
    'app.view("v", sql="SELECT city FROM orders", reads="changes")': (4, "reads='changes'"),
    # Python
    "x = 1 +": (4, "SyntaxError: invalid syntax"),
    "def f():\nreturn 1": (5, "IndentationError"),
    "import pysparkk": (4, "No module named 'pysparkk'", "install the package"),
    "from millstream import Ap": (4, "cannot import name 'Ap'"),
    "def f():\n  return 1 / 0\nf()": (5, "ZeroDivisionError: division by zero"),
    "raise KeyError": (4, "KeyError"),
    "import sys\nsys.exit(3)": (5, "SystemExit: 3", "leave the exit out"),
    'app.stream("a", "x INT")': (4, "TypeError", "positional"),
    'app.streem("a", schema="x INT")': (4, "no attribute 'streem'"),
    'other = App("other")': (4, "defines 2 apps: 'shop' in line 2, 'other' in line 4"),
    "del app": (0, "defines no app", "write app = App('pipeline')"),
    'App("no such name")': (4, "app name 'no such name'", "write 'no_such_name'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_reported_with_its_line_and_a_remedy(tmp_path: Path, mistake: str) -> None:
    line, *parts = MISTAKES[mistake]
    path = tmp_path / "pipeline.py"
    path.write_text(f"{HEAD}{mistake}\n", encoding="utf-8")
    with pytest.raises(PipelineError) as caught:
        load(path)
    for part in parts:
        assert str(part) in str(caught.value)
    assert (caught.value.file, caught.value.line) == (str(path), line)
    assert caught.value.remedy


def test_a_mistake_is_reported_at_the_user_s_line_even_when_another_module_raises(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, "import json\n\njson.loads('{')\n")
    with pytest.raises(PipelineError, match="JSONDecodeError") as caught:
        load(path)
    assert caught.value.line == 3


def test_a_mistake_in_a_module_beside_the_pipeline_is_reported_there(tmp_path: Path) -> None:
    beside = tmp_path / "broken_beside_it.py"
    beside.write_text("x = 1\ny = x.nothing\n")
    with pytest.raises(PipelineError, match="no attribute 'nothing'") as caught:
        load(write(tmp_path, "import broken_beside_it\n"))
    assert (caught.value.file, caught.value.line) == (str(beside), 2)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("p.py", b"\xff\xfe", "not UTF-8 text"),
        ("p.py", b"app = 1\x00", "null bytes"),
        ("p.txt", b"", "a .py or a .sql file"),
        ("p.py", b"from millstream import App\napp = App('a')", "has no streams"),
        ("p.sql", b"-- nothing", "has no streams"),
        ("p.sql", b"CREATE VIEW v AS SELECT a FROM b", "neither a stream nor a view"),
    ],
)
def test_a_file_that_is_no_pipeline_is_refused(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(PipelineError) as caught:
        load(path)
    assert says in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_a_missing_file_is_reported_with_the_existing_ones(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "meetup.py")
    with pytest.raises(PipelineError, match=r"there is no such file; there is meetup\.py"):
        load(tmp_path / "metup.py")
    with pytest.raises(PipelineError, match="cannot be read"):
        load(_folder(tmp_path / "folder.py"))


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("call", ["F.col('id') > 10", "F.lit(1)", "F.window('at', '1 hour')"])
def test_a_call_of_spark_outside_of_a_function_is_reported_with_a_remedy(
    tmp_path: Path, call: str
) -> None:
    file = tmp_path / "pipeline.py"
    file.write_text(f"from pyspark.sql import functions as F\n\nlarge = {call}\n")
    message = loaded(file)
    assert message.startswith("PipelineError ")
    assert f"{file}:3: Spark's functions can't be called here" in message
    assert "move the call into a view's function" in message


def loaded(file: Path) -> str:
    """The output of a process that loads the pipeline without a Spark session."""
    reading = (
        "import sys; from pathlib import Path; from millstream.pipeline.load import load\n"
        "try: load(Path(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    return subprocess.run(
        [sys.executable, "-c", reading, str(file)], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize(
    "function",
    ["udf('string')", "udf(returnType='a INT, b ARRAY<STRING>')", "pandas_udf('map<int, date>')"],
)
def test_a_python_function_may_declare_its_return_type_as_text(
    tmp_path: Path, function: str
) -> None:
    declaration = f"@F.{function}\ndef twice(n):\n    return n\n"
    file = tmp_path / "pipeline.py"
    file.write_text(
        "from pyspark.sql import functions as F\nfrom millstream import App\napp = App('a')\n"
        f"app.stream('s', schema='x INT')\n{declaration}"
    )
    assert loaded(file) == ""
    # The same in a module beside it, the only one that imports pyspark.
    (tmp_path / "beside.py").write_text(f"from pyspark.sql import functions as F\n{declaration}")
    file.write_text(
        "from millstream import App\nfrom beside import twice\napp = App('a')\n"
        "app.stream('s', schema='x INT')\n"
    )
    assert loaded(file) == ""


def test_an_unknown_return_type_is_reported_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.py"
    file.write_text(
        "from pyspark.sql import functions as F\n\ntwice = F.udf(lambda n: n, 'strng')\n"
    )
    assert f"{file}:3: 'strng' is no return type of a function; did you mean" in loaded(file)
